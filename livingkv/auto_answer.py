"""Mode auto at work: one way of reading after the other until an answer convinces, all that a name is held by, or all.

Knows the order of steps and what each hands on; which ways there are is said by auto.py, what an answer is worth by
confidence.py. Changes nothing durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from livingkv.answer_check import content_words, taken_share
from livingkv.asked_words import is_in_english
from livingkv.asking import Asking
from livingkv.auto import Way, ways, ways_for_all
from livingkv.checking import unfitted_confidence
from livingkv.errors import RecordDamaged
from livingkv.exact_cost import against_exact, against_reading
from livingkv.generation import Generated
from livingkv.modes import question_ids
from livingkv.naming import Named, named_sentences
from livingkv.passages import Judged, Passage
from livingkv.question import (
    Name,
    asks_about_all,
    asks_for_a_number,
    asks_for_all_of,
    asks_what_is_frequent,
    is_small_number,
    names_in,
    tells_a_number,
    with_list_request,
)
from livingkv.reading_cost import Span, slow_pages
from livingkv.recall import Probed, attend_sinks, sentences_with
from livingkv.results import NOT_STORED, Answer, Mode
from livingkv.sampling import Sampling
from livingkv.sides import sentences_of_sides, sides_of, tells_of_both, ways_to_ask

_BOTH = "it asks about two things: the best sentence for each is read again"
_OVER_ALL = "it asks about all that is stored"


@dataclass(frozen=True, slots=True)
class Auto:
    """One question in mode auto, probed and judged. `max_tokens`, `sampling` and `stop` are those of the answer.
    reads_all: False, and no session is read again or attended as a whole, which nothing can confirm."""

    asking: Asking
    probed: Probed
    judged: Sequence[Judged]
    max_tokens: int
    sampling: Sampling
    stop: Sequence[str] = ()
    reads_all: bool = True

    def answer(self) -> Answer:
        """The first answer that convinces, else an abstention that tells of the best.

        A question that wants all there is about a name is answered from every sentence that holds it; where that does
        not convince, single passages are tried with the same wording and check. For one about everything the session is
        read again, or attended in mode exact, where one is meant and this machine can afford it.
        """
        question = self.asking.question
        names = names_in(question)
        if not asks_about_all(question):
            both = None if names else sentences_of_sides(sides_of(question), self.judged)
            return self._tried(ways(self.judged, names)) if both is None else self._both_of(both)
        n_is_no_name = asks_what_is_frequent(question) and all(is_small_number(name) for name in names)
        if n_is_no_name or not names:
            return self._stated() or self._over_all(_OVER_ALL)
        named = self._named(names)
        if named is None:
            return self._tried(ways(self.judged, names))
        if not asks_for_all_of(question):
            return self._counted(named)
        if not named.is_whole:
            n = f"{named.n_found} sentences and more"
            return self._over_all(f"{_OVER_ALL} about {_spelled(named.names)}, {n} than recall_tokens hold")
        self.asking.listed = named.names
        self.asking.said = with_list_request(question)
        return self._list_of(named) or self._tried(ways(self.judged, names))

    def _counted(self, named: Named) -> Answer:
        """A number about a name: as the only sentence that is about it states it; where several are, nobody has
        counted them."""
        question = self.asking.question
        known = {word for name in named.names for each in name.words for word in content_words(each)}
        asked = content_words(question) - known
        shares = [len(asked & content_words(hit.sentence.text)) for hit in named.hits]
        if asks_for_a_number(question) and named.is_whole and shares.count(max(shares)) == 1:
            return self._tried(ways(self.judged, names_in(question)), self._is_number)
        return self._over_all(f"{_OVER_ALL} about {_spelled(named.names)}")

    def _stated(self) -> Answer | None:
        """A number that some passage states; None where none does, or where all is to be summed up."""
        if not asks_for_a_number(self.asking.question):
            return None
        answer = self._tried(ways(self.judged, ()), self._is_number)
        return answer if answer.confident else None

    def _list_of(self, named: Named) -> Answer | None:
        """The first list that convinces and takes something from every sentence, else the one that takes from most;
        None where none convinces."""
        found: Answer | None = None
        words: Generated | None = None
        most = 0.0
        texts = [hit.sentence.text for hit in named.hits]
        for way in ways_for_all(named):
            answer = self._read_way(way)
            share = 1.0 if named.is_chain else taken_share(answer.answer, self.asking.question, texts)
            if answer.confident and share > most:
                found, words, most = answer, self.asking.generated, share
            if most == 1.0:
                break
        if found is None:
            return None
        self.asking.generated = words
        gap = "" if most == 1.0 else f"; something of {most:.0%} of them is in the answer"
        return self._timed(replace(found, reason=f"{found.reason}{gap}"))

    def _both_of(self, both: Named) -> Answer:
        """What the sentences of the two things asked about say; nothing where one of them is left out."""
        self.asking.listed = both.names
        question, texts = self.asking.question, [hit.sentence.text for hit in both.hits]
        tried: list[Answer] = []
        for said in ways_to_ask(question, both):
            self.asking.said = said
            answer = self._read_way(Way("ground", both.hits, False, _BOTH))
            is_whole = taken_share(answer.answer, question, texts) == 1.0 and tells_of_both(answer.answer, both.names)
            if answer.confident and is_whole:
                return self._timed(answer)
            tried.append(answer)
        return self._doubted(tried)

    def _named(self, names: Sequence[Name]) -> Named | None:
        home, question, sessions = self.asking.home, self.asking.question, self.probed.sessions
        store, index = home.store(), home.index.current()
        return named_sentences(
            names,
            self.judged,
            lambda words, limit: sentences_with(store, index, question, words, sessions, limit),
            home.settings.recall_tokens,
        )

    def _is_number(self, answer: Answer) -> bool:
        """What an English question for a number has to be answered with."""
        return tells_a_number(answer.answer) or not is_in_english(self.asking.question)

    def _tried(self, plan: Iterator[Way], fits: Callable[[Answer], bool] = lambda _: True) -> Answer:
        tried: list[Answer] = []
        for way in plan:
            answer = self._read_way(way)
            if answer.confident and fits(answer):
                return self._timed(answer)
            tried.append(answer)
        if not tried:
            return self._abstain("nothing stored shares enough with the question")
        return self._doubted(tried)

    def _doubted(self, tried: Sequence[Answer]) -> Answer:
        best = max(tried, key=lambda answer: answer.confidence)
        doubt = f"the best answer found was {best.answer!r}, but it does not follow well enough from what is stored"
        n_prefilled = max(answer.prefilled_tokens for answer in tried)
        told = replace(best, answer=NOT_STORED, mode="extract", confident=False, reused_tokens=0, reason=doubt)
        return replace(told, prefilled_tokens=n_prefilled, generated_tokens=self.asking.n_generated)

    def _read_way(self, way: Way) -> Answer:
        passages = self.asking.passages(way.hits, grown=way.grown)
        mode, reason = self._affordable(way, passages)
        return self._read(mode, passages, reason)

    def _affordable(self, way: Way, passages: Sequence[Passage]) -> tuple[Mode, str]:
        """The way's mode and reason; ground in the place of kv where the disk is slower than the model."""
        spans = [Span(self.probed.session(each.session_id), each.token_lo, each.token_hi) for each in passages]
        slow = slow_pages(self.asking.engine, self.asking.kv, spans) if way.mode == "kv" else None
        return (way.mode, way.reason) if slow is None else ("ground", f"one passage stands out; {slow.reason}")

    def _over_all(self, why: str) -> Answer:
        """What the whole text says, read again, or mode exact; the confidence is low. Where this machine cannot afford
        either, an abstention that says what would answer it.

        A document's KV has looked back a span: to count in it, reading it again is better than attending it
        (experiments/008_ruler).
        """
        if not self.reads_all:
            return self._abstain(f"{why}, which recall of passages cannot answer")
        against_reading_it = self._against_reading()
        if against_reading_it is None:
            try:
                return self._read_all(why)
            except RecordDamaged as error:
                against_reading_it = str(error)
        against = self._against_exact()
        if against is None:
            try:
                return self._exact(why)
            except RecordDamaged as error:
                against = str(error)
        instead = f"mode exact would, but {against}; reading all of it again would, but {against_reading_it}"
        return self._abstain(f"{why}, which recall of passages cannot answer; {instead}")

    def _against_exact(self) -> str | None:
        asking, sessions = self.asking, self.probed.sessions
        if len(sessions) != 1:
            return "one session has to be named for it"
        n_asked = len(question_ids(asking.engine, asking.question)) + self.max_tokens
        settings = asking.home.settings
        try:
            scratch = attend_sinks(asking.engine, asking.kv, sessions[0], asking.home.n_sinks, 1)
            return against_exact(
                asking.engine, asking.kv, sessions[0], scratch, settings, n_asked, n_passes=self.max_tokens
            )
        except RecordDamaged as error:
            return str(error)

    def _against_reading(self) -> str | None:
        asking, sessions = self.asking, self.probed.sessions
        if len(sessions) != 1 or not self.judged:
            return "one session has to be named for it"
        n_asked = len(question_ids(asking.engine, asking.question)) + self.max_tokens
        return against_reading(asking.engine, sessions[0], asking.home.settings, n_asked)

    def _read_all(self, why: str) -> Answer:
        session = self.probed.sessions[0]
        text = self.asking.home.store().text(session.session_id).decode("utf-8", "replace")
        whole = Passage(session.session_id, session.name, "", 0, session.n_tokens, text, self.judged[0])
        answer = self._read(
            "ground", [whole], f"{why}: the whole session was read again, and no passage can confirm it"
        )
        return self._unconfirmed(answer, text)

    def _unconfirmed(self, answer: Answer, text: str) -> Answer:
        sure = unfitted_confidence(answer.answer, self.asking.question, text, self.asking.log_probabilities)
        return self._timed(replace(answer, confidence=sure, confident=False, evidence=()))

    def _exact(self, why: str) -> Answer:
        asking, session = self.asking, self.probed.sessions[0]
        answer = self._read("exact", [], f"{why}: the whole session was attended, and no passage can confirm it")
        text = asking.home.store().text(session.session_id).decode("utf-8", "replace")
        return self._unconfirmed(answer, text)

    def _read(self, mode: Mode, passages: list[Passage], reason: str) -> Answer:
        return self.asking.read(mode, self.probed, passages, self.max_tokens, self.sampling, self.stop, None, reason)

    def _abstain(self, reason: str) -> Answer:
        return self.asking.abstain(self.probed, self.asking.passages(self.judged[:1]), reason)

    def _timed(self, answer: Answer) -> Answer:
        """Nobody has seen a token before the answer was checked."""
        clock = self.asking.clock
        clock.first_token = clock.lap()
        return replace(answer, generated_tokens=self.asking.n_generated, timings_ms=clock.timings())


def _spelled(names: Sequence[Name]) -> str:
    return ", ".join(" ".join(name.words) for name in names)
