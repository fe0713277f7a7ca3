"""Repair: KV that is damaged, dropped or missing is made anew from the session's token ids.

Knows the store, the hot window and which pages cannot be read; knows no index. Only what is damaged is rebuilt:
the hot window is restored from the whole pages before it and reads on from there, so the rebuilt page attends what
the lost one attended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from livingkv.conversation_mark import is_conversation
from livingkv.engine import Engine
from livingkv.errors import PageDamaged, RecordDamaged, StoreFull
from livingkv.hot_window import HotWindow, window_start
from livingkv.results import Repaired
from livingkv.settings import PAGE_TOKENS, LookBack, Settings
from livingkv.store import SessionRow, Store

RUN_PAGES = 64
"""Pages rebuilt between two commits: a repair that breaks off keeps what it has done."""


def damaged_pages(store: Store, session: SessionRow) -> list[int]:
    """Pages of a session that cannot be read, in order. Reads every page of the session."""
    return [page for page in range(session.n_sealed_tokens // PAGE_TOKENS) if not _reads(store, session, page)]


def _reads(store: Store, session: SessionRow, page: int) -> bool:
    try:
        store.read_pages(session.session_id, [page])
    except PageDamaged:
        return False
    return True


def tail_is_whole(store: Store, session: SessionRow) -> bool:
    """True when the unsealed tail can be read and covers all tokens behind the last page."""
    if session.n_tokens == session.n_sealed_tokens:
        return True
    if session.needs_tail:
        return False
    try:
        store.read_tail(session.session_id)
    except PageDamaged:
        return False
    return True


def repair_session(
    store: Store,
    engine: Engine,
    settings: Settings,
    session: SessionRow,
    n_sinks: int,
    progress: Callable[[int, int], None] | None = None,
) -> Repaired:
    """Rebuild what cannot be read of a session; durable on return, in commits of up to 64 pages. A session without
    KV is given none. `progress` gets pages done and in all.

    What cannot be rebuilt, because token ids or the pages before are damaged too, is left and named as the problem.
    Raises ModelError or StoreError.
    """

    def look_at(page: int) -> LookBack:
        return _look_at(store, settings, session, page)

    bad, done, problems = damaged_pages(store, session), list[int](), list[str]()

    def rebuilt(page: int, token_lo: int, token_hi: int) -> HotWindow | None:
        try:
            hot = _window_at(store, engine, settings, session, page, n_sinks)
            _read(store, engine, session, hot, token_lo, token_hi)
        except RecordDamaged as error:
            problems.append(str(error))
            return None
        return hot

    for run in _runs(bad, look_at):
        if (hot := rebuilt(run[0], run[0] * PAGE_TOKENS, (run[-1] + 1) * PAGE_TOKENS)) is not None:
            store.replace_pages(session.session_id, dict(zip(run, hot.take_sealed(), strict=True)))
            done += run
            if progress is not None:
                progress(len(done), len(bad))
    wants_tail = not tail_is_whole(store, session)
    if wants_tail:
        hot = rebuilt(session.n_sealed_tokens // PAGE_TOKENS, session.n_sealed_tokens, session.n_tokens)
        if hot is not None:
            store.replace_pages(session.session_id, {}, hot.tail())
        wants_tail = hot is not None
    return Repaired(session.name, tuple(done), tail=wants_tail, problem=problems[0] if problems else None)


def _is_document(store: Store, session: SessionRow, token: int) -> bool:
    if token >= session.n_tokens or store.role_at(session.session_id, token) != "document":
        return False
    return not is_conversation(store, session.session_id)  # what a tool answered was read as part of a turn


def _look_at(store: Store, settings: Settings, session: SessionRow, page: int) -> LookBack:
    """How far what stands behind `page` pages looked back when it was read. A page on which a document and a turn meet
    is taken for what its first token is."""
    return settings.document if _is_document(store, session, page * PAGE_TOKENS) else settings.conversation


class _Reread:
    """Pages of one session read again in memory, from the pages that are there."""

    def __init__(self, store: Store, engine: Engine, settings: Settings, session: SessionRow, n_sinks: int) -> None:
        self._store = store
        self._engine = engine
        self._settings = settings
        self._session = session
        self._n_sinks = n_sinks
        self.pages: dict[int, bytes] = {}

    def look_at(self, page: int) -> LookBack:
        """See `_look_at`."""
        return _look_at(self._store, self._settings, self._session, page)

    def window(self, page: int, look: LookBack, tail: bytes = b"") -> HotWindow:
        """The hot window of the session when it had `page` pages, and `tail`."""
        needed = _needed(page, look)
        absent = [each for each in needed if each not in self.pages]
        self.pages |= zip(absent, self._store.read_pages(self._session.session_id, absent), strict=True)
        return _restored(self._engine, self._settings, self._n_sinks, self.pages, page, look, tail)

    def read(self, start: int, end: int) -> None:
        """Read pages [start, end) again; a window can be restored at `start`."""
        for run in _runs(range(start, end), self.look_at):
            hot = self.window(run[0], self.look_at(run[0]))
            lo, hi = run[0] * PAGE_TOKENS, (run[-1] + 1) * PAGE_TOKENS
            _read(self._store, self._engine, self._session, hot, lo, hi)
            self.pages |= zip(run, hot.take_sealed(), strict=True)

    def tail(self) -> bytes:
        """The tail read again."""
        session = self._session
        n_pages = session.n_sealed_tokens // PAGE_TOKENS
        hot = self.window(n_pages, self.look_at(n_pages))
        _read(self._store, self._engine, session, hot, session.n_sealed_tokens, session.n_tokens)
        return hot.tail()


def reread_window(
    store: Store, engine: Engine, settings: Settings, session: SessionRow, n_sinks: int, look: LookBack
) -> HotWindow:
    """The hot window of a session whose KV a disk budget took: its pages are read again from the last place where a
    window can be restored. They are put back as far as the budget has room; that it has none does not matter.

    Raises PageDamaged for a page that is damaged, RecordDamaged, ModelError or StoreError.
    """
    again = _Reread(store, engine, settings, session, n_sinks)
    missing = set(store.missing_pages(session.session_id))
    n_pages = session.n_sealed_tokens // PAGE_TOKENS
    needed = _needed(n_pages, look)
    latest = min(missing.intersection(needed), default=n_pages)
    start = next(page for page in range(latest, -1, -1) if not missing.intersection(_needed(page, again.look_at(page))))
    again.read(start, n_pages)
    tail = None if tail_is_whole(store, session) else again.tail()
    with contextlib.suppress(StoreFull):
        put_back = {page: data for page, data in again.pages.items() if page in missing and page in needed}
        store.replace_pages(session.session_id, put_back, tail)
    return again.window(n_pages, look, store.read_tail(session.session_id)[1] if tail is None else tail)


def _restored(
    engine: Engine,
    settings: Settings,
    n_sinks: int,
    pages: Mapping[int, bytes],
    n_pages: int,
    look: LookBack,
    tail: bytes = b"",
) -> HotWindow:
    """The hot window of a session with `n_pages` pages and a tail, made of the pages that `_needed` names."""
    hot = engine.hot_window(settings, n_sinks, look)
    first = window_start(n_pages * PAGE_TOKENS, look) // PAGE_TOKENS
    if n_pages or tail:
        hot.restore([pages[page] for page in range(first, n_pages)], first, pages[0] if first else None, tail)
    return hot


def _needed(page: int, look: LookBack) -> list[int]:
    """The pages that the hot window of a session with `page` pages is restored from."""
    if page == 0:
        return []
    first = window_start(page * PAGE_TOKENS, look) // PAGE_TOKENS
    return [*([0] if first else []), *range(first, page)]


def _runs(pages: Sequence[int], look_at: Callable[[int], LookBack]) -> Iterator[list[int]]:
    """Neighbouring pages that look back alike together, at most RUN_PAGES."""
    run: list[int] = []
    for page in pages:
        if run and (page != run[-1] + 1 or len(run) == RUN_PAGES or look_at(page) != look_at(run[0])):
            yield run
            run = []
        run.append(page)
    if run:
        yield run


def _window_at(
    store: Store, engine: Engine, settings: Settings, session: SessionRow, page: int, n_sinks: int
) -> HotWindow:
    """The hot window as it stood when the session had `page` pages and no tail, as far as what follows looked back."""
    look = _look_at(store, settings, session, page)
    needed = _needed(page, look)
    pages = dict(zip(needed, store.read_pages(session.session_id, needed), strict=True))
    return _restored(engine, settings, n_sinks, pages, page, look)


def _read(store: Store, engine: Engine, session: SessionRow, hot: HotWindow, lo: int, hi: int) -> None:
    ids = store.token_ids(session.session_id, lo, hi).astype(np.int64)
    engine.runner.read(torch.from_numpy(ids).to(engine.model.device), hot)
