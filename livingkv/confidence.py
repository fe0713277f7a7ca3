"""How sure recall is that the store holds an answer, and which mode that calls for.

Knows the gains and word coverage of judged hits; knows no KV and no text. The thresholds were read off real questions
(experiments/LOG.md) and are the same for all models until calibration from the store itself replaces them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from livingkv.passages import Judged
from livingkv.results import Mode

HALF = 2.2
"""Gain in nats per question token, plus the coverage of its words, at which the confidence is one half."""

SLOPE = 2.5
TIE = 0.5
"""Hits whose rank scores differ by less are near ties: the model must see all of them."""

CONFIDENT = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """confidence in 0..1; n_recalled: how many of the first hits belong to the answer; mode: what auto chooses;
    reason: why."""

    confidence: float
    n_recalled: int
    mode: Mode
    reason: str

    @property
    def confident(self) -> bool:
        """True when the store seems to hold the answer."""
        return self.confidence >= CONFIDENT


def judge(hits: Sequence[Judged], *, at_most: int = 4) -> Verdict:
    """The verdict on judged hits, best first. Hits without a gain are not counted."""
    judged = [hit for hit in hits if hit.gain is not None]
    if not judged:
        return Verdict(0.0, 0, "extract", "nothing stored shares a word or a meaning with the question")
    best = judged[0]
    assert best.gain is not None
    evidence = best.gain + best.coverage
    confidence = 1.0 / (1.0 + math.exp(-SLOPE * (evidence - HALF)))
    ties = sum(1 for hit in judged if best.rank_score - hit.rank_score < TIE)
    n = min(ties, at_most)
    if confidence < CONFIDENT:
        said = f"the best stored sentence makes the question {best.gain:.2f} nats per token likelier"
        return Verdict(confidence, n, "extract", f"{said} and holds {best.coverage:.0%} of its words: too little")
    if ties == 1:
        return Verdict(confidence, 1, "kv", "one sentence stands out: its stored KV is attended, nothing is read again")
    return Verdict(confidence, n, "ground", f"{ties} sentences are nearly tied: {n} of their passages are read again")


def judge_words(hits: Sequence[Judged]) -> Verdict:
    """The verdict without a model: the share of the question's words that the first hit holds, rare ones counting
    more."""
    if not hits:
        return judge([])
    share = hits[0].coverage
    reason = f"no model was asked: the best sentence holds {share:.0%} of the question's words"
    return Verdict(share, 1, "extract", reason)
