"""Stored KV of any run of a session's tokens, decoded and ready to attend.

Knows the store, the codec and token spans; knows no index and no question. A damaged page raises; it never becomes
a tensor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from livingkv.codec import KV, Lossless, PageBytes
from livingkv.cold_kv import BLOCK_PAGES, ColdKV
from livingkv.conversation_mark import is_conversation
from livingkv.engine import Engine
from livingkv.errors import PageDamaged, RecordDamaged
from livingkv.hot_window import HotWindow, window_start
from livingkv.page_places import GPU_PAGES, Place
from livingkv.settings import PAGE_TOKENS, LookBack, Settings
from livingkv.store import SessionRow, Store
from livingkv.tiers import TieredPages
from livingkv.workspace import Workspace

_KEPT_PAGES = 32
"""Decoded pages kept for reuse within a question: candidates that are judged are often recalled as well. Between
questions the RAM tier keeps the pages' bytes, half the size or less."""


class StoredKV:
    """Decoded KV of one store's sessions, with a small least-recently-used cache. Not thread-safe.

    `pages` are the store's own, through its tiers: they are decoded where they lie in RAM.
    """

    def __init__(self, store: Store, engine: Engine, pages: TieredPages) -> None:
        self._store = store
        self._engine = engine
        self._tiers = pages
        self._pages: OrderedDict[tuple[int, int], KV] = OrderedDict()

    def run(self, session: SessionRow, token_lo: int, token_hi: int) -> KV:
        """Keys and values of tokens [token_lo, token_hi), keys at their absolute positions.

        A writer may have sealed pages since the row was read: then the row is read again. Raises PageDamaged or
        RecordDamaged.
        """
        assert 0 <= token_lo < token_hi <= session.n_tokens, "a run lies in the session"
        sealed = session.n_sealed_tokens
        tail = b""
        if token_hi > sealed:
            first_of_tail, tail = self._store.read_tail(session.session_id)
            if first_of_tail != sealed:
                return self.run(self._store.session(session.session_id), token_lo, token_hi)
        parts: list[KV] = []
        if token_lo < sealed:
            first, last = token_lo // PAGE_TOKENS, (min(token_hi, sealed) - 1) // PAGE_TOKENS
            pages = self._decoded(session.session_id, range(first, last + 1))
            parts += [
                _cut(page, token_lo - index * PAGE_TOKENS, token_hi - index * PAGE_TOKENS) for index, page in pages
            ]
        if token_hi > sealed:
            kv = Lossless(self._engine.shape).decode_run(tail, self._engine.model.device)
            parts.append(_cut(kv, token_lo - sealed, token_hi - sealed))
        return KV(torch.cat([part.keys for part in parts], 2), torch.cat([part.values for part in parts], 2))

    def attend(self, session: SessionRow, token_lo: int, token_hi: int, space: Workspace, position: int) -> None:
        """Put the run behind what `space` attends, its keys moved to `position` and on. Raises as `run`; then what the
        space attends is not defined."""
        sealed = session.n_sealed_tokens
        first, end = token_lo // PAGE_TOKENS, (min(token_hi, sealed) - 1) // PAGE_TOKENS + 1
        pages = [page for page in range(first, end) if (session.session_id, page) not in self._pages]
        if token_lo >= sealed or len(pages) < end - first:  # what was judged is decoded already
            run, delta = self.run(session, token_lo, token_hi), position - token_lo
            space.push(KV(self._engine.moved(run.keys, delta), run.values), position)
            return
        slot = space.claim(min(token_hi, sealed) - token_lo, position)
        places = []
        for at in (page * PAGE_TOKENS for page in pages):
            lo, hi = max(token_lo - at, 0), min(token_hi - at, PAGE_TOKENS)
            places.append(Place(at, lo, hi, slot, position - token_lo))
            slot += hi - lo
        self._decode_into(session.session_id, pages, places, KV(space.keys, space.values))
        if token_hi > sealed:
            self.attend(session, sealed, token_hi, space, position + sealed - token_lo)

    def _decode_into(self, session_id: int, pages: Sequence[int], places: Sequence[Place], into: KV) -> None:
        codec, rope = self._engine.codec, self._engine.model.rope
        try:
            with closing(self._tiers.stream(session_id, pages)) as stream:
                codec.decode_into((data for _, data in stream), places, into, rope)
        except PageDamaged:  # damaged, or moved by a defragmentation since it was located: the store tells
            codec.decode_into(self._store.read_pages(session_id, pages), places, into, rope)

    def is_conversation(self, session: SessionRow) -> bool:
        """True where the session ends with a reply, not inside an open user message."""
        return is_conversation(self._store, session.session_id)

    def seconds_for(self, session: SessionRow, pages: Iterable[int]) -> float | None:
        """How long pages would take to be had, at the speeds measured so far; those decoded already take nothing.

        None while no page was ever read, and where one is not to be had.
        """
        missing = [page for page in pages if (session.session_id, page) not in self._pages]
        try:
            return self._tiers.estimate_seconds(session.session_id, missing) if missing else 0.0
        except RecordDamaged:
            return None

    def prefetch(self, session: SessionRow, token_lo: int, token_hi: int) -> None:
        """Begin to read the pages of tokens [token_lo, token_hi) as far as RAM has room; does not block."""
        last = min(token_hi, session.n_sealed_tokens)
        pages = [
            page
            for page in range(token_lo // PAGE_TOKENS, -(-last // PAGE_TOKENS))
            if (session.session_id, page) not in self._pages
        ]
        with suppress(RecordDamaged):  # whoever asks for the page is told
            self._tiers.prefetch(session.session_id, pages)

    def cold(self, session: SessionRow, n_tokens: int, *, block_pages: int = BLOCK_PAGES) -> ColdKV:
        """The first `n_tokens` tokens, whole pages all of them, block by block. Raises PageDamaged where KV is gone."""
        assert n_tokens % PAGE_TOKENS == 0 and n_tokens <= session.n_tokens, "cold KV is pages"
        pages = n_tokens // PAGE_TOKENS
        return ColdKV(self._store, self._engine, self._tiers, session.session_id, pages, block_pages=block_pages)

    def sinks(self, session: SessionRow, n_sinks: int) -> KV:
        """The first `n_sinks` tokens. They attend nothing but themselves, so where their page is damaged they are
        read again. A conversation of the service begins with a system message of its own: what is recalled of it gets
        the prologue that every other session begins with, which is read for it."""
        prologue = self._engine.words.framing.prologue
        if n_sinks == len(prologue) and is_conversation(self._store, session.session_id):
            return self._read_ids(np.array(prologue, np.int64), None)
        try:
            return self.run(session, 0, n_sinks)
        except RecordDamaged:
            return self._read_again(session, 0, n_sinks, None)

    def read_again(self, session: SessionRow, token_lo: int, token_hi: int, n_sinks: int) -> KV:
        """KV of tokens [token_lo, token_hi) made anew behind the sinks, keys at positions n_sinks, n_sinks + 1, ...

        Stands in for a damaged page; knows less than what was stored, which had seen the text before. Raises
        RecordDamaged when the token ids are damaged too.
        """
        return self._read_again(session, token_lo, token_hi, self.sinks(session, n_sinks))

    def _read_again(self, session: SessionRow, token_lo: int, token_hi: int, sinks: KV | None) -> KV:
        ids = self._store.token_ids(session.session_id, token_lo, token_hi).astype(np.int64)
        return self._read_ids(ids, sinks)

    def _read_ids(self, ids: npt.NDArray[np.int64], sinks: KV | None) -> KV:
        start = 0 if sinks is None else sinks.keys.shape[2]
        space = self._engine.workspace(start + len(ids))
        if sinks is not None:
            space.push(sinks, 0)
            space.next_position = start
        self._engine.runner.read(torch.from_numpy(ids).to(self._engine.model.device), space)
        return space.view(start, space.end)

    def _decoded(self, session_id: int, pages: range) -> list[tuple[int, KV]]:
        known = {page: kv for page in pages if (kv := self._pages.get((session_id, page))) is not None}
        missing = [page for page in pages if page not in known]
        try:
            with closing(self._tiers.stream(session_id, missing)) as stream:
                known |= self._pages_of((data for _, data in stream), missing)
        except PageDamaged:  # damaged, or moved by a defragmentation since it was located: the store tells
            known |= self._pages_of(self._store.read_pages(session_id, missing), missing)
        for page in pages:
            self._pages[session_id, page] = known[page]
            self._pages.move_to_end((session_id, page))
        while len(self._pages) > _KEPT_PAGES:
            self._pages.popitem(last=False)
        return [(page, known[page]) for page in pages]

    def _pages_of(self, data: Iterable[PageBytes], pages: Sequence[int]) -> dict[int, KV]:
        """Pages decoded, several at once where that is less work."""
        device, waiting, found = self._engine.model.device, iter(data), {}
        step = GPU_PAGES if device.type == "cuda" else 1
        for index in range(0, len(pages), step):
            some = pages[index : index + step]
            firsts = [page * PAGE_TOKENS for page in some]
            kv = self._engine.codec.decode(islice(waiting, len(some)), firsts, device)
            for at, page in zip(range(0, kv.keys.shape[2], PAGE_TOKENS), some, strict=True):
                found[page] = _cut(kv, at, at + PAGE_TOKENS)
        return found


def _cut(kv: KV, lo: int, hi: int) -> KV:
    return KV(kv.keys[:, :, max(lo, 0) : hi], kv.values[:, :, max(lo, 0) : hi])


class _Window(Collection[memoryview]):
    """Adjacent pages of a session, each valid until the next is asked for; read ahead, several at a time."""

    def __init__(self, tiers: TieredPages, session_id: int, pages: range) -> None:
        self._tiers, self._session_id, self._pages = tiers, session_id, pages

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: object) -> bool:
        return any(page == each for each in self)

    def __iter__(self) -> Iterator[memoryview]:
        with closing(self._tiers.stream(self._session_id, self._pages, once=True)) as stream:
            for _, data in stream:
                yield data


def restore_hot_window(
    store: Store,
    engine: Engine,
    session: SessionRow,
    settings: Settings,
    n_sinks: int,
    look: LookBack | None = None,
    *,
    tiers: TieredPages | None = None,
) -> HotWindow:
    """The hot window of a stored session: reads the pages that it attends, page 0 for the sinks, and the tail. look:
    left out, that of a conversation.

    tiers: the store's pages; they are decoded where they lie while the next ones are read. The device holds them from
    then on, so that in RAM they go before all others.
    """
    look = look or settings.conversation
    hot = engine.hot_window(settings, n_sinks, look)
    if session.n_tokens == 0:
        return hot
    first = window_start(session.n_tokens, look) // PAGE_TOKENS
    last = session.n_sealed_tokens // PAGE_TOKENS
    session_id, window = session.session_id, range(first, last)
    first_of_tail, tail = store.read_tail(session_id)
    if first_of_tail != session.n_sealed_tokens:  # a writer has sealed pages since the row was read
        return restore_hot_window(store, engine, store.session(session_id), settings, n_sinks, look, tiers=tiers)
    page_zero = store.read_pages(session_id, [0])[0] if first else None
    if tiers is not None:
        try:
            hot.restore(_Window(tiers, session_id, window), first, page_zero, tail)
            return hot
        except PageDamaged:  # damaged, or moved by a defragmentation since it was located: the store tells
            hot = engine.hot_window(settings, n_sinks, look)
    hot.restore(store.read_pages(session_id, window), first, page_zero, tail)
    return hot
