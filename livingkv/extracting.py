"""Mode extract: what the index finds first, verbatim. Knows the index and the store; loads no model."""

from __future__ import annotations

from dataclasses import dataclass

from livingkv.clock import Clock
from livingkv.confidence import CONFIDENT
from livingkv.describing import evidence_of
from livingkv.home import Home
from livingkv.passages import Judged
from livingkv.question_signs import is_question
from livingkv.recall import passages_for, probe
from livingkv.results import NOT_STORED, Answer
from livingkv.scope import Scope

_MORE = 4
"""So many times more hits are looked at, as some may be left out."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """The answer, and the hits that it was taken from, best first."""

    answer: Answer
    hits: tuple[Judged, ...]


def extract(home: Home, question: str, scope: Scope, *, limit: int = 1) -> Extracted:
    """Mode extract: the stored text of the best sentence, verbatim. The index alone decides; no model is loaded. Up to
    `limit` hits. What a user only asked is left out: the same question of another day is no answer to it.

    Raises QuestionError, SessionNotFound or StoreError.
    """
    clock = Clock()
    depth = max(limit, home.settings.n_candidates) * _MORE
    probed = probe(home.store(), home.index.current(), question, scope, depth)
    clock.probe = clock.lap()
    home.watch.probed(clock.probe / 1000)
    hits = tuple(hit for hit in probed.hits if not _is_asked(hit))[:limit]
    passages = passages_for(home.store(), hits[:1], home.settings.recall_tokens)
    share = hits[0].coverage if passages else 0.0
    clock.fetch = clock.lap() - clock.probe
    answer = Answer(
        answer=passages[0].best.sentence.text.strip() if passages else NOT_STORED,
        mode="extract",
        confident=share >= CONFIDENT,
        confidence=share,
        evidence=evidence_of(passages),
        n_tokens=probed.n_tokens,
        reused_tokens=0,
        prefilled_tokens=0,
        timings_ms=clock.timings(),
        reason=f"no model was asked: the best sentence holds {share:.0%} of the question's words",
    )
    return Extracted(answer, hits)


def _is_asked(hit: Judged) -> bool:
    return hit.sentence.role == "user" and is_question(hit.sentence.text)
