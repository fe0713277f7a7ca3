"""What goes into the index and what comes out of it.

Knows only the shapes; every other module of the index knows this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Entry:
    """One sentence to be found. Ids are the store's; the index gives out none of its own."""

    sentence_id: int
    session_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """One sentence that a probe found.

    `score` is the fused one that orders the hits (higher is better). `lexical` is BM25, `semantic` the cosine; ranks
    begin at 1 within their channel. A channel that did not find the sentence leaves None. `salience`: how many standard
    deviations the cosine stands above that of the question with sentences at large; of a sentence that words alone
    found, that of the last one which meaning found, for its own is below; None where nothing can be told.
    """

    sentence_id: int
    session_id: int
    score: float
    lexical: float | None
    semantic: float | None
    lexical_rank: int | None
    semantic_rank: int | None
    salience: float | None = None


class Found(NamedTuple):
    """One sentence that one channel found, with the channel's own score."""

    sentence_id: int
    session_id: int
    score: float


def best(found: list[Found], limit: int) -> list[Found]:
    """The `limit` highest scores, ties by sentence id."""
    return sorted(found, key=lambda one: (-one.score, one.sentence_id))[:limit]
