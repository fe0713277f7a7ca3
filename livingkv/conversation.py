"""Memory beside a dialogue: what the hot window does not hold is asked of the store before a turn is read.

Knows what a turn attends and what auto answered; reads nothing into the session. A dialogue is a strong prior: with
memory's text in front of it a small model goes on chatting, so the answer is found beside it and put back as the
assistant's words.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from livingkv.question_signs import is_question
from livingkv.recall import Probed
from livingkv.results import Answer, Recall
from livingkv.sampling import Sampling
from livingkv.scope import Scope
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
    """What a turn attends of its session: tokens from `token_lo` to the end that its row counts. session: None where
    nothing of it is stored."""

    session: SessionRow | None
    token_lo: int

    def holds_all(self, row: SessionRow) -> bool:
        """True for a session of which the turn attends all."""
        own = self.session
        return (
            own is not None and row.session_id == own.session_id and not self.token_lo and row.n_tokens <= own.n_tokens
        )

    def holds(self, sentence: Sentence) -> bool:
        """True for a sentence that the turn attends."""
        if self.session is None or sentence.session_id != self.session.session_id:
            return False
        return self.token_lo <= sentence.token_lo and sentence.token_hi <= self.session.n_tokens


@dataclass(frozen=True, slots=True)
class Searched:
    """The sessions that may answer a turn, and the scope that finds them; of each the tokens that its row counts."""

    rows: tuple[SessionRow, ...]
    scope: str | Scope | None

    def of(self, probed: Probed, held: Held) -> Probed:
        """What was found without what must not answer, questions that the turn attends anyway among it."""
        n_tokens = {row.session_id: row.n_tokens for row in self.rows}
        hits = [hit for hit in probed.hits if hit.sentence.token_hi <= n_tokens.get(hit.sentence.session_id, 0)]
        return Probed(self.rows, tuple(hit for hit in hits if not _is_asked_now(hit.sentence, held)))


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
    """Ask memory for what the hot window of `session` does not hold, in all sessions but encrypted ones or in this one;
    changes nothing. Raises ModelError or StoreError."""
    if recall == "off":
        return Beside()
    held = Held(session, window_start(session.n_tokens, home.settings.conversation))
    searched = Searched((session,), session.name)
    if recall == "all":
        searched = _open_sessions(home.store().sessions(), session)
    return recall_beside(asking, message, held, searched, max_tokens, sampling, stop)


def recall_beside(
    asking: Asking,
    message: str,
    held: Held,
    searched: Searched,
    max_tokens: int,
    sampling: Sampling,
    stop: Sequence[str],
) -> Beside:
    """Ask memory, in mode auto, for what a turn does not attend; changes nothing.

    Nothing is asked for a message that is no question or asks by function words alone, and where nothing is stored
    that the turn does not attend.
    Raises ModelError or StoreError.
    """
    if not is_question(message) or not content_words(message) or not _has_more(held, searched):
        return Beside()
    probed = searched.of(asking.probe(searched.scope), held)
    judged = asking.judge(probed)
    if any(held.holds(hit.sentence) for hit in judged[: max(1, n_tied(judged))]):
        return Beside()
    if not judged or judged[0].rank_score < LEAST_RANK:
        return Beside(asking.abstain(probed, (), "nothing stored is near enough to the question"))
    limit = min(max_tokens, RECALL_TOKENS)
    answer = Auto(asking, probed, judged, limit, sampling, stop, reads_all=False).answer()
    words = asking.generated
    if not answer.confident or words is None:
        return Beside(answer)
    if words.finish == "length" and limit < max_tokens:
        doubt = f"an answer from memory did not end within {limit} tokens"
        return Beside(replace(answer, confident=False, reason=doubt))
    return Beside(answer, words)


def _open_sessions(rows: Sequence[SessionRow], own: SessionRow) -> Searched:
    """All sessions that may be told elsewhere: what is encrypted stays where it is."""
    found = tuple(row for row in rows if not row.encrypted or row.session_id == own.session_id)
    named = None if len(found) == len(rows) else Scope(names=frozenset(row.name for row in found))
    return Searched(found, named)


def _has_more(held: Held, searched: Searched) -> bool:
    return any(row.n_sentences and not held.holds_all(row) for row in searched.rows)


def _is_asked_now(sentence: Sentence, held: Held) -> bool:
    return held.holds(sentence) and sentence.role == "user" and is_question(sentence.text)
