"""What memory said to the last message of a turn, as the turn and its answer use it.

Knows values only.
"""

from __future__ import annotations

from dataclasses import dataclass

from livingkv.generation import Generated
from livingkv.results import Answer, Recall


@dataclass(frozen=True, slots=True)
class Recollection:
    """recall: where memory was allowed to look. answer: what it said, None where it was not asked; reason: why it was
    not. words: the answer's tokens, where it convinced: they are the reply then. n_prefilled, n_reused, n_generated:
    tokens that asking took. sentence_ids: what the answer was read from."""

    recall: Recall
    answer: Answer | None = None
    words: Generated | None = None
    reason: str = ""
    n_prefilled: int = 0
    n_reused: int = 0
    n_generated: int = 0
    sentence_ids: tuple[int, ...] = ()
