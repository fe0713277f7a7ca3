"""Bodies on their way in: how many at once, how many bytes they hold together, and how slow one may be.

Knows HTTP bodies as ASGI has them; knows no route. What is received here is in memory before anybody looks at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from livingkv.server.api_errors import RETRY_AFTER_S, ApiError
from livingkv.server.counters import Counters
from livingkv.server.options import ServerOptions

PATIENCE_S = 5.0
LEAST_BYTES = 1 << 17
"""A body that is not whole brings at least so many bytes in every `PATIENCE_S`."""


class Receiving:
    """All bodies that are being received. On the event loop only."""

    def __init__(self, options: ServerOptions, counters: Counters) -> None:
        self._options = options
        self._counters = counters
        self._n = self._n_bytes = 0

    async def whole(self, headers: Headers, receive: Receive, limit: int) -> Receive:
        """Receive a body of at most `limit` bytes; it comes from the returned one, and so does what follows
        it, the disconnect.

        Raises ApiError: 413 where it is too large, 408 where it is too slow, 503 where too many come at once.
        """
        said = headers.get("content-length", "0")
        if said.isdecimal() and int(said) > limit:
            raise too_large(limit)
        with self.place() as body:
            last = await self._received(receive, body, limit)
            waiting: list[Message] = [last if last["type"] != "http.request" else _request(bytes(body))]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        return replay

    @contextmanager
    def place(self) -> Iterator[bytearray]:
        """Room for one body, counted until the block ends, and with it the bytes that are in what is given. Raises
        ApiError where too many come at once."""
        if self._n >= self._options.max_uploads:
            raise self._refusal()
        body = bytearray()
        self._count(1, 0)
        try:
            yield body
        finally:
            self._count(-1, -len(body))

    async def _received(self, receive: Receive, body: bytearray, limit: int) -> Message:
        """Add what comes to `body`; the last message."""
        loop, n_counted = asyncio.get_running_loop(), 0
        try:
            async with asyncio.timeout(PATIENCE_S) as patience:
                while True:
                    message = await receive()
                    part = message.get("body", b"")
                    if len(body) + len(part) > limit:
                        raise too_large(limit)
                    if self._n_bytes + len(part) > self._options.max_upload_bytes:
                        raise self._refusal()
                    body += part
                    self._count(0, len(part))
                    if not message.get("more_body", False):
                        return message
                    if len(body) - n_counted >= LEAST_BYTES:
                        n_counted = len(body)
                        patience.reschedule(loop.time() + PATIENCE_S)
        except TimeoutError as error:
            raise too_slow() from error

    def _count(self, n: int, n_bytes: int) -> None:
        self._n, self._n_bytes = self._n + n, self._n_bytes + n_bytes
        self._counters.uploads.set(self._n)
        self._counters.upload_bytes.set(self._n_bytes)

    def _refusal(self) -> ApiError:
        self._counters.uploads_refused.inc()
        told = "too many requests are being received: try again"
        return ApiError(503, told, code="too_many_uploads", retry_after_s=RETRY_AFTER_S)


def _request(body: bytes) -> Message:
    return {"type": "http.request", "body": body, "more_body": False}


def too_large(limit: int) -> ApiError:
    """A body is longer than it may be."""
    return ApiError(413, f"a body of at most {limit} bytes is allowed", code="body_too_large")


def too_slow() -> ApiError:
    """A body brings too little in `PATIENCE_S`."""
    told = f"the body comes too slowly: {LEAST_BYTES} bytes in {PATIENCE_S:.0f} s are the least"
    return ApiError(408, told, code="timeout")
