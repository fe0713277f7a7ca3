"""How sure recall is of an answer, and which hits belong together.

Knows numbers: gains and word coverage of judged hits, names held, how an answer follows from its passages; knows no KV
and no text. The weights are a logistic regression on made-up facts and needles, fitted and tested by
experiments/010_confidence, and are the same for all models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from livingkv.passages import Judged

TIE = 0.5
"""Hits whose rank scores differ by less are near ties: the model must see all of them."""

CONFIDENT = 0.65
"""Below it an answer is not given. Chosen on the two raw files of experiments/010_confidence, where at 0.5 one question
in five about a known subject, but without an answer, was answered; the weights were fitted on half of the first one."""

MOST_LIFT = 2.0

MOST_LIST_LIFT = 1.5
"""A list of values is the passages' words by its nature. Chosen by hand: no list was among what the weights were fitted
on."""

_BIAS = -5.89
_WEIGHTS = {"rest_gain": 0.57, "behind": -1.87, "names": 2.67, "found": 0.70, "bound": 4.76, "lift": -0.61}


@dataclass(frozen=True, slots=True)
class Signs:
    """What speaks for an answer.

    rest_gain: nats per question token outside of names that the best recalled hit's stored KV adds to the likelihood of
    the question, -1..6: is it about what is asked, not only about whom?
    behind: by how much that is less than what another hit adds, 0..3. Where others say far more of what is asked, not
    of whom, the question is about something that this one does not tell.
    names: the share of the question's names that the recalled passages hold.
    found: the share of what the answer adds to the question that stands in the passages.
    bound: the same in one sentence, together with a name of the question.
    lift: nats per token that the passages add to the likelihood of the answer, -1..MOST_LIFT. An answer that owes them
    very much is often their words and not an answer.
    """

    rest_gain: float
    behind: float
    names: float
    found: float
    bound: float
    lift: float

    @property
    def confidence(self) -> float:
        """The probability that the answer is right and stored, 0..1."""
        score = _BIAS + sum(weight * getattr(self, name) for name, weight in _WEIGHTS.items())
        return 1.0 / (1.0 + math.exp(-score))


def n_tied(hits: Sequence[Judged]) -> int:
    """How many judged hits are nearly as good as the first; 0 when none was judged. Best first; without a gain they
    are not counted."""
    judged = [hit for hit in hits if hit.gain is not None]
    return sum(1 for hit in judged if judged[0].rank_score - hit.rank_score < TIE)
