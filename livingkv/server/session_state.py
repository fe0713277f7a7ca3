"""A session's state: is all of it readable, and back into device memory with it. Numbers are measured, not claimed.

Knows hot windows, pages and the runner's count of tokens; knows no route. On the inference thread.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

from livingkv.codec import page_bytes
from livingkv.conversation_mark import is_conversation
from livingkv.errors import PageDropped, RecordDamaged
from livingkv.home import Home
from livingkv.hot_window import window_start
from livingkv.server.api_errors import ApiError
from livingkv.server.counters import Counters
from livingkv.server.owners import session_of
from livingkv.server.stepwise import pause
from livingkv.settings import PAGE_TOKENS, LookBack
from livingkv.store import SessionRow, Store
from livingkv.tiers.disk_tier import cached_share

Place = Literal["device", "ram", "disk"]
_PAGES_AT_ONCE = 16
_SLICE = 1 << 20
_IN_RAM = 0.99
"""Of its bytes a session has so much in the machine's memory, where its place is called that."""


@dataclass(frozen=True, slots=True)
class SessionState:
    """One session's state in one tenant's home."""

    home: Home
    row: SessionRow

    @property
    def place(self) -> Place:
        """The nearest place that holds what the next turn attends."""
        if self.home.holds(self.row) is not None:
            return "device"
        store, pages = self.home.store(), self._attended_pages()
        try:
            keys = store.locate_pages(self.row.session_id, pages)
        except RecordDamaged:  # dropped or damaged: it comes from its text, which is on disk
            return "disk"
        return "ram" if not keys or cached_share(store.segments, keys) >= _IN_RAM else "disk"

    def saved(self) -> dict[str, Any]:
        """What is stored of the session, once every byte of it was read and found right. Raises ApiError that names
        the way to mend it."""
        started, place, store = perf_counter(), self.place, self.home.store()
        try:
            n_pages, n_bytes, n_missing = self._read_pages(store)
            n_bytes += self._read_text(store)
        except RecordDamaged as error:
            raise damaged(self.row, error) from error
        return self._told(started, place, n_bytes) | {"pages_checked": n_pages, "pages_missing": n_missing}

    def restored(self, counters: Counters) -> dict[str, Any]:
        """Bring what the next turn attends into device memory. What was prefilled for that is the runner's count.

        Raises ApiError where it is damaged and cannot be made anew.
        """
        started, place, runner = perf_counter(), self.place, self.home.engine().runner
        if self.row.text_only and self.row.n_tokens:
            nothing = {"reused_tokens": 0, "prefilled_tokens": 0, "attended_tokens": 0, "rebuilt": False}
            return self._told(started, place, 0) | nothing
        before = runner.n_prefilled
        try:
            with self.home.hot_window(self.row, document=self._look() == self.home.settings.document) as hot:
                n_prefilled, n_attended, n_tokens = runner.n_prefilled - before, hot.n_attended, hot.n_tokens
        except RecordDamaged as error:
            raise damaged(self.row, error) from error
        counters.prefilled_tokens.inc(n_prefilled)
        per_token = page_bytes("lossless", self.home.engine().shape) // PAGE_TOKENS
        return self._told(started, place, n_attended * per_token) | {
            "reused_tokens": max(0, n_tokens - n_prefilled),
            "prefilled_tokens": n_prefilled,
            "attended_tokens": n_attended,
            "rebuilt": n_prefilled > 0,
        }

    def _told(self, started: float, place: Place, n_bytes: int) -> dict[str, Any]:
        return {
            "session": session_of(self.row.name),
            "tokens": self.row.n_tokens,
            "bytes": n_bytes,
            "tier": place,
            "ms": round((perf_counter() - started) * 1000, 3),
            "fingerprint": self.home.store().fingerprint.to_json(),
        }

    def _look(self) -> LookBack:
        """How far back the session's next text looks: a conversation's does as far as its hot window reaches."""
        settings, store, row = self.home.settings, self.home.store(), self.row
        if not row.n_tokens or is_conversation(store, row.session_id):
            return settings.conversation
        is_document = store.role_at(row.session_id, row.n_tokens - 1) == "document"
        return settings.document if is_document else settings.conversation

    def _attended_pages(self) -> list[int]:
        first = window_start(self.row.n_tokens, self._look()) // PAGE_TOKENS
        return [*([0] if first else []), *range(first, self.row.n_sealed_tokens // PAGE_TOKENS)]

    def _read_pages(self, store: Store) -> tuple[int, int, int]:
        """Pages and their bytes that were read, the tail's bytes too, and pages whose KV is not kept."""
        row = self.row
        missing = set(store.missing_pages(row.session_id))
        pages = [page for page in range(row.n_sealed_tokens // PAGE_TOKENS) if page not in missing]
        n_bytes = 0
        for first in range(0, len(pages), _PAGES_AT_ONCE):
            n_bytes += sum(map(len, store.read_pages(row.session_id, pages[first : first + _PAGES_AT_ONCE])))
            pause()
        with contextlib.suppress(PageDropped):  # it is made anew from its token ids
            n_bytes += len(store.read_tail(row.session_id)[1])
        return len(pages), n_bytes, len(missing)

    def _read_text(self, store: Store) -> int:
        """Read text and token ids; the bytes of the text."""
        row = self.row
        for lo in range(0, row.n_bytes, _SLICE):
            store.text(row.session_id, lo, min(lo + _SLICE, row.n_bytes))
            pause()
        for lo in range(0, row.n_tokens, _SLICE):
            store.token_ids(row.session_id, lo, min(lo + _SLICE, row.n_tokens))
            pause()
        return row.n_bytes


def damaged(row: SessionRow, error: RecordDamaged) -> ApiError:
    """What a client is told of a damaged session: which, where, and how to mend it."""
    page = getattr(error, "page", None)
    where = "" if page is None else f", page {page}"
    told = (
        f"session {session_of(row.name)!r} is damaged{where}: stop the service and run `livingkv repair` on the store"
    )
    return ApiError(500, told, code="session_damaged")
