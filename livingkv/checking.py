"""What speaks for an answer: it is looked for in the recalled text, and its likelihood is compared with and without it.

Knows the model, passages and the answer; knows no store. Reads the question and the answer once more, without passages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from livingkv.answer_check import list_support, support
from livingkv.confidence import CONFIDENT, MOST_LIFT, MOST_LIST_LIFT, Signs
from livingkv.engine import Engine
from livingkv.passages import Passage
from livingkv.question import Name, is_small_number, names_held, names_in
from livingkv.text import split_sentences
from livingkv.workspace import AttentionState


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer that was generated. `asked_ids`: the question as it was read, up to where the answer begins;
    `log_probabilities`: of its tokens as they were picked, at least one for each. listed: where a list was asked for,
    the names that its pieces are to stand beside; None where one thing was."""

    question: str
    asked_ids: Sequence[int]
    answer: str
    token_ids: Sequence[int]
    log_probabilities: Sequence[float]
    listed: tuple[Name, ...] | None = None


def signs_of(engine: Engine, without: AttentionState, spoken: Spoken, passages: Sequence[Passage]) -> Signs:
    """The signs for an answer that was read from at least one passage. `without`: a state that attends no passage, with
    room for question and answer; they are read into it."""
    best = max((passage.best for passage in passages), key=lambda hit: hit.rank_score)
    sentences = [sentence for passage in passages for sentence in (*_sentences(passage.text), passage.source)]
    names: Sequence[Name] = names_in(spoken.question)
    if spoken.listed is None:
        what = support(spoken.answer, spoken.question, names, sentences)
    else:
        what = list_support(spoken.answer, spoken.question, spoken.listed, sentences)
        names = [name for name in names if not is_small_number(name)] or names
    return Signs(
        rest_gain=_within(-1.0, best.rest_gain, 6.0),
        behind=_within(0.0, best.behind, 3.0),
        names=names_held(names, sentences),
        found=what.found,
        bound=what.bound,
        lift=_within(-1.0, _lift(engine, without, spoken), MOST_LIFT if spoken.listed is None else MOST_LIST_LIFT),
    )


def unfitted_confidence(answer: str, question: str, text: str, log_probabilities: Sequence[float]) -> float:
    """How sure an answer is that was read from all of `text`, not from passages: the share of what it adds to the
    question that stands there, times the mean probability of its tokens; always below CONFIDENT, because a count has no
    sentence to stand in and none was among the questions that the weights were fitted on."""
    if not log_probabilities:
        return 0.0
    likely = math.exp(sum(log_probabilities) / len(log_probabilities))
    return CONFIDENT * 0.99 * likely * list_support(answer, question, (), [text]).found


def _lift(engine: Engine, without: AttentionState, spoken: Spoken) -> float:
    """Nats per token by which the passages make the answer likelier than the question alone does."""
    n_tokens = len(spoken.token_ids)
    if not n_tokens:
        return 0.0
    ids = torch.tensor([*spoken.asked_ids, *spoken.token_ids], device=engine.model.device)
    alone = engine.runner.log_likelihood(ids, without, n_scored=n_tokens)
    return (sum(spoken.log_probabilities[:n_tokens]) - alone) / n_tokens


def _within(low: float, value: float, high: float) -> float:
    return min(high, max(low, value))


def _sentences(text: str) -> list[str]:
    raw = text.encode()
    return [raw[span.byte_lo : span.byte_hi].decode() for span in split_sentences(raw)]
