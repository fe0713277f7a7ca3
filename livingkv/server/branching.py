"""A conversation that goes another way than a stored one: it begins with the pages that both have in common.

Knows stored pages and hot windows; knows no text.
"""

from __future__ import annotations

from typing import NamedTuple

from livingkv.errors import RecordDamaged
from livingkv.home import Home
from livingkv.hot_window import HotWindow, window_start
from livingkv.settings import PAGE_TOKENS
from livingkv.store import SessionRow


class Branch(NamedTuple):
    """A hot window that no session owns yet, and the pages that it stands on, from the first one on."""

    hot: HotWindow
    pages: tuple[bytes, ...]


def empty_branch(home: Home) -> Branch:
    """The beginning of a conversation."""
    engine = home.engine()
    return Branch(engine.hot_window(home.settings, len(engine.words.framing.prologue)), ())


def branch(home: Home, session: SessionRow, n_tokens: int) -> Branch:
    """The first whole pages of a session within `n_tokens`; none where one of them cannot be had any more."""
    n_pages = min(n_tokens, session.n_sealed_tokens) // PAGE_TOKENS
    if n_pages == 0:
        return empty_branch(home)
    try:
        pages = home.store().read_pages(session.session_id, range(n_pages))
    except RecordDamaged:
        return empty_branch(home)
    hot = home.engine().hot_window(home.settings, home.n_sinks)
    first = window_start(n_pages * PAGE_TOKENS, home.settings.conversation) // PAGE_TOKENS
    hot.restore(pages[first:], first, pages[0] if first else None, b"")
    return Branch(hot, tuple(pages))
