"""Requests that are sent twice: what the first was answered is the answer to the second, and it is done once.

Knows keys, digests of bodies and finished answers, in memory, for a day; knows no route. On the event loop only, but
for what says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from livingkv.server.api_errors import ApiError, key_reused
from livingkv.store import IdempotencyKey

HEADER = "idempotency-key"
KEPT_S = 86_400.0
MOST_KEPT = 10_000
_KEY_CHARS = 255


class _Asked(NamedTuple):
    """Whose request, and its user, path and key as a digest."""

    tenant: str
    key: bytes


Make = Callable[[IdempotencyKey | None], Awaitable[Response]]
"""Makes the answer. With a key: what the store knows under it is done already, and what is stored is stored under
it."""


@dataclass(slots=True)
class _First:
    """The first request: its body, and its answer, which may be on its way. unquoted: makes of the answer what may be
    told once something was forgotten."""

    digest: bytes
    answer: asyncio.Future[Response]
    began_s: float
    unquoted: Callable[[Response], Response] | None
    is_outdated: bool = False

    def let_go_quotes(self) -> None:
        """Keep of the answer only what may still be told; where it is on its way, once it is there."""
        self.is_outdated = True
        if self.unquoted is None or not self.answer.done() or self.answer.cancelled() or self.answer.exception():
            return
        kept, self.answer = self.unquoted(self.answer.result()), asyncio.get_running_loop().create_future()
        self.answer.set_result(kept)


class Idempotency:
    """Answers by Idempotency-Key. An error is answered to whoever waits for it and not kept: the next one tries
    again. What was stored under a key is known by the store, also after a restart."""

    def __init__(self, *, most: int = MOST_KEPT, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._known: OrderedDict[_Asked, _First] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def once(
        self,
        request: Request,
        tenant: str,
        user: str,
        make: Make,
        *,
        body_digest: bytes | None = None,
        unquoted: Callable[[Response], Response] | None = None,
    ) -> Response:
        """What `make` answers; with an Idempotency-Key, what it answered first. body_digest: where the body was read as
        a stream; else it is that of the request's body. unquoted: what is left of an answer that quotes what is stored,
        once something was forgotten.

        With a key `make` goes on to its end though the client goes away: it will ask again. Raises ApiError where the
        key came with another body before, or cannot be one; and what `make` raises.
        """
        name = request.headers.get(HEADER)
        if name is None:
            return await make(None)
        if not 0 < len(name) <= _KEY_CHARS:
            raise ApiError(400, f"Idempotency-Key: 1 to {_KEY_CHARS} characters are allowed", code="idempotency_key")
        body = hashlib.sha256(await request.body()).digest() if body_digest is None else body_digest
        key = IdempotencyKey.of("\0".join((user, request.url.path, name)), request.url.query.encode() + b"\0" + body)
        asked = _Asked(tenant, key.key)
        self._let_go_old()
        first = self._known.get(asked)
        if first is not None and first.digest != key.digest:
            raise key_reused()
        if first is None:
            self._make_room()
            self._loop = asyncio.get_running_loop()
            first = _First(key.digest, asyncio.ensure_future(make(key)), self._now(), unquoted)
            first.answer.add_done_callback(lambda answer: self._note(asked, answer))
            self._known[asked] = first
        return await asyncio.shield(first.answer)

    def forgotten(self, tenant: str) -> None:
        """Something of the tenant was forgotten: kept answers quote nothing any more, before whoever forgot it is
        answered. From any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is answered any more
                self._loop.call_soon_threadsafe(self._let_go_quotes, tenant)

    def _let_go_quotes(self, tenant: str) -> None:
        for asked, first in self._known.items():
            if asked.tenant == tenant:
                first.let_go_quotes()

    def _note(self, asked: _Asked, answer: asyncio.Future[Response]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self._known.pop(asked, None)
        elif (first := self._known.get(asked)) is not None and first.is_outdated:
            first.let_go_quotes()

    def _let_go_old(self) -> None:
        """Forget what is older than a day; not what is still on its way."""
        for asked, first in list(self._known.items()):
            if self._now() - first.began_s < KEPT_S:
                break
            if first.answer.done():
                del self._known[asked]

    def _make_room(self) -> None:
        """Forget the oldest answer where there are as many as may be kept."""
        if len(self._known) >= self._most:
            oldest = next((asked for asked, first in self._known.items() if first.answer.done()), None)
            if oldest is not None:
                del self._known[oldest]
