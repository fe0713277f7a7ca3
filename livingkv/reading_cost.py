"""Is stored KV worth its reading? A disk can be slower than the model reads the same text again.

Knows measured speeds of tiers and runner; guesses nothing: what was not measured yet is not decided here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from livingkv.engine import Engine
from livingkv.settings import PAGE_TOKENS
from livingkv.store import SessionRow
from livingkv.stored_kv import StoredKV

LEAST_S = 0.25
"""Pages that are there sooner are always read: nobody waits for them, and they know more than text read again."""


class Span(NamedTuple):
    """Tokens [token_lo, token_hi) of a session."""

    session: SessionRow
    token_lo: int
    token_hi: int


class SlowPages(NamedTuple):
    """Estimates in seconds: having the pages of some spans, and reading their tokens again instead."""

    pages_s: float
    again_s: float

    @property
    def reason(self) -> str:
        """For an answer."""
        return (
            f"its text was read again: the pages would take about {self.pages_s:.1f} s from disk, "
            f"the text {self.again_s:.1f} s"
        )


def slow_pages(engine: Engine, kv: StoredKV, spans: Iterable[Span]) -> SlowPages | None:
    """The estimates, if reading the spans' pages would take longer than reading their text again; else, and while
    either speed was not measured yet, None."""
    speed = engine.runner.tokens_per_s
    pages: dict[int, set[int]] = defaultdict(set)
    rows: dict[int, SessionRow] = {}
    n_tokens = 0
    for session, lo, hi in spans:
        rows[session.session_id] = session
        sealed = min(hi, session.n_sealed_tokens)
        pages[session.session_id].update(range(lo // PAGE_TOKENS, -(-sealed // PAGE_TOKENS)))
        n_tokens += hi - lo
    pages_s = 0.0
    for session_id, wanted in pages.items():
        seconds = kv.seconds_for(rows[session_id], sorted(wanted))
        if seconds is None:
            return None
        pages_s += seconds
    if speed is None or pages_s < LEAST_S or pages_s <= n_tokens / speed:
        return None
    return SlowPages(pages_s, n_tokens / speed)
