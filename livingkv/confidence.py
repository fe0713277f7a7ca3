"""How sure recall is that the store holds an answer, and which mode that calls for.

Knows the gains of judged hits; knows no KV and no text. The thresholds were read off real questions
(experiments/004_confidence) and are the same for all models until calibration from the store itself replaces them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from livingkv.index.analysis import question_terms, terms
from livingkv.passages import Judged
from livingkv.results import Mode

GAIN_HALF = 1.75
"""Nats per question token at which the confidence is one half: present facts gained 2.3 to 4.9, absent ones up to
1.3."""

GAIN_SLOPE = 2.5
TIE_NATS = 0.5
"""Hits whose gains differ by less are near ties: the model must see all of them."""

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


def judge(gains: Sequence[float], *, at_most: int = 4) -> Verdict:
    """The verdict on hits with these gains, best first."""
    if not gains:
        return Verdict(0.0, 0, "extract", "nothing stored shares a word or a meaning with the question")
    best = gains[0]
    confidence = 1.0 / (1.0 + math.exp(-GAIN_SLOPE * (best - GAIN_HALF)))
    ties = sum(1 for gain in gains if best - gain < TIE_NATS)
    if confidence < CONFIDENT:
        reason = (
            f"the best stored sentence makes the question {best:.2f} nats per token likelier, {GAIN_HALF} are needed"
        )
        return Verdict(confidence, min(ties, at_most), "extract", reason)
    if ties == 1:
        return Verdict(confidence, 1, "kv", "one sentence stands out: its stored KV is attended, nothing is read again")
    n = min(ties, at_most)
    return Verdict(
        confidence, n, "ground", f"{ties} sentences are nearly tied: the passages of {n} are read again together"
    )


def judge_words(question: str, hits: Sequence[Judged]) -> Verdict:
    """The verdict without a model: the share of the question's telling terms that the first hit holds."""
    if not hits:
        return judge([])
    share = coverage(question, hits[0].sentence.text)
    reason = f"no model was asked: the best sentence holds {share:.0%} of the question's telling words"
    return Verdict(share, 1, "extract", reason)


def coverage(question: str, text: str) -> float:
    """The share of the question's term weights that `text` holds, 0..1. Question words weigh little."""
    weights = question_terms(question)
    total = sum(weights.values())
    if not total:
        return 0.0
    held = set(terms(text))
    return sum(weight for term, weight in weights.items() if term in held) / total
