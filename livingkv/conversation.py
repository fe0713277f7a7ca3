"""Memory beside a dialogue: what the hot window does not hold is asked of the store before a turn is read.

Knows what a turn attends and what auto answered; reads nothing into the session. A dialogue is a strong prior: with
memory's text in front of it a small model goes on chatting, so the answer is found beside it and put back as the
assistant's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from livingkv.answer_check import content_words
from livingkv.asking import Asking
from livingkv.auto_answer import Auto
from livingkv.confidence import n_tied
from livingkv.errors import InputError
from livingkv.generation import Generated
from livingkv.home import Home
from livingkv.hot_window import window_start
from livingkv.passages import Judged
from livingkv.question_signs import is_question
from livingkv.recall import Probed
from livingkv.results import Answer, Recall
from livingkv.sampling import Sampling
from livingkv.store import Sentence, SessionRow

LEAST_RANK = 1.25
"""A best hit that ranks lower is not worth an answer: what is asked is small talk, or nobody told. Of 32
right sentences that came first 31 rank higher (experiments/014_conversation/note.md)."""

RECALL_TOKENS = 64
"""An answer that memory gives is no longer; what does not end by then is no answer to a question of fact."""


def check_recall(recall: Recall) -> None:
    """Raise InputError for a place that there is not."""
    if recall not in get_args(Recall):
        raise InputError("recall", repr(recall), f"one of {', '.join(get_args(Recall))} is allowed")


@dataclass(frozen=True, slots=True)
class Beside:
    """What memory says to a message. answer: None when it was not asked, or the hot window holds what is asked.
    words: the answer's tokens, when it convinced."""

    answer: Answer | None = None
    words: Generated | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What a turn attends of its session: tokens from `token_lo` on."""

    session: SessionRow
    token_lo: int

    def holds(self, sentence: Sentence) -> bool:
        """True for a sentence that the turn attends."""
        return sentence.session_id == self.session.session_id and sentence.token_lo >= self.token_lo


def ask_beside(
    home: Home,
    asking: Asking,
    message: str,
    session: SessionRow,
    recall: Recall,
    max_tokens: int,
    sampling: Sampling,
    stop: Sequence[str],
) -> Beside:
    """Ask memory, in mode auto, for what the hot window of `session` does not hold; changes nothing.

    Nothing is asked for a message that is no question or asks by function words alone, and where nothing is stored
    that the turn does not attend.
    Raises ModelError or StoreError.
    """
    held = Held(session, window_start(session.n_tokens, home.settings.conversation))
    if recall == "off" or not is_question(message) or not content_words(message) or not _has_more(home, held, recall):
        return Beside()
    probed = _kept(asking.probe(None if recall == "all" else session.name), held)
    judged = asking.judge(probed)
    if any(held.holds(hit.sentence) for hit in judged[: max(1, n_tied(judged))]):
        return Beside()
    if not judged or judged[0].rank_score < LEAST_RANK:
        return Beside(asking.abstain(probed, (), "nothing stored is near enough to the question"))
    limit = min(max_tokens, RECALL_TOKENS)
    answer = Auto(asking, probed, judged, limit, sampling, stop).answer()
    words = asking.generated
    if not answer.confident or words is None:
        return Beside(answer)
    if words.finish == "length" and limit < max_tokens:
        doubt = f"an answer from memory did not end within {limit} tokens"
        return Beside(replace(answer, confident=False, reason=doubt))
    return Beside(answer, words)


def _has_more(home: Home, held: Held, recall: Recall) -> bool:
    if held.token_lo > 0:
        return True
    rows: Iterable[SessionRow] = home.store().sessions() if recall == "all" else ()
    return any(row.n_sentences and row.session_id != held.session.session_id for row in rows)


def _kept(probed: Probed, held: Held) -> Probed:
    """Without what must not answer: sentences of other sessions that are encrypted, which would be copied out of them,
    and questions that the turn attends anyway."""
    return replace(probed, hits=tuple(hit for hit in probed.hits if _may_answer(hit, held)))


def _may_answer(hit: Judged, held: Held) -> bool:
    sentence = hit.sentence
    if sentence.encrypted and sentence.session_id != held.session.session_id:
        return False
    return not (held.holds(sentence) and sentence.role == "user" and is_question(sentence.text))
