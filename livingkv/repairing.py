"""Repair: KV that is damaged, dropped or missing is made anew from the session's token ids.

Knows the store, the hot window and which pages cannot be read; knows no index. Only what is damaged is rebuilt:
the hot window is restored from the whole pages before it and reads on from there, so the rebuilt page attends what
the lost one attended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from livingkv.engine import Engine
from livingkv.errors import PageDamaged
from livingkv.hot_window import HotWindow, window_start
from livingkv.results import Repaired
from livingkv.settings import PAGE_TOKENS, Settings
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

    Raises RecordDamaged when the token ids themselves are damaged, ModelError or StoreError.
    """
    bad = damaged_pages(store, session)
    done = 0
    for run in _runs(bad, lambda page: _is_document(store, session, page * PAGE_TOKENS)):
        hot = _window_at(store, engine, settings, session, run[0], n_sinks)
        _read(store, engine, session, hot, run[0] * PAGE_TOKENS, (run[-1] + 1) * PAGE_TOKENS)
        store.replace_pages(session.session_id, dict(zip(run, hot.take_sealed(), strict=True)))
        done += len(run)
        if progress is not None:
            progress(done, len(bad))
    has_tail = tail_is_whole(store, session)
    if not has_tail:
        hot = _window_at(store, engine, settings, session, session.n_sealed_tokens // PAGE_TOKENS, n_sinks)
        _read(store, engine, session, hot, session.n_sealed_tokens, session.n_tokens)
        store.replace_pages(session.session_id, {}, hot.tail())
    return Repaired(session.name, tuple(bad), tail=not has_tail)


def _is_document(store: Store, session: SessionRow, token: int) -> bool:
    return store.role_at(session.session_id, token) == "document"


def _runs(pages: Sequence[int], is_document: Callable[[int], bool]) -> Iterator[list[int]]:
    """Neighbouring pages of one kind together, at most RUN_PAGES."""
    run: list[int] = []
    for page in pages:
        if run and (page != run[-1] + 1 or len(run) == RUN_PAGES or is_document(page) != is_document(run[0])):
            yield run
            run = []
        run.append(page)
    if run:
        yield run


def _window_at(
    store: Store, engine: Engine, settings: Settings, session: SessionRow, page: int, n_sinks: int
) -> HotWindow:
    """The hot window as it stood when the session had `page` pages and no tail, as far as what follows looked back."""
    if _is_document(store, session, page * PAGE_TOKENS):
        settings = settings.for_documents
    hot = engine.hot_window(settings, n_sinks)
    if page == 0:
        return hot
    first = window_start(page * PAGE_TOKENS, settings.window_tokens) // PAGE_TOKENS
    wanted = [0] if first else []
    pages = store.read_pages(session.session_id, [*wanted, *range(first, page)])
    hot.restore(pages[len(wanted) :], first, pages[0] if wanted else None, b"")
    return hot


def _read(store: Store, engine: Engine, session: SessionRow, hot: HotWindow, lo: int, hi: int) -> None:
    ids = store.token_ids(session.session_id, lo, hi).astype(np.int64)
    engine.runner.read(torch.from_numpy(ids).to(engine.model.device), hot)
