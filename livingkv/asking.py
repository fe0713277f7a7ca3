"""One question on its way: the steps of the read loop, its clock and its honest counts.

Knows the order in which memory.py calls it and what every step hands on; changes nothing durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from livingkv.checking import Spoken, signs_of
from livingkv.clock import Clock
from livingkv.confidence import CONFIDENT, Signs, n_tied
from livingkv.describing import evidence_of
from livingkv.errors import InputError, QuestionError
from livingkv.generation import Generated, collect
from livingkv.home import Home
from livingkv.modes import Prepared, Preparing, question_ids
from livingkv.passages import Judged, Passage, grow_passages, sentence_passages
from livingkv.question import Name
from livingkv.recall import Probed, attend_sinks, judge_hits, probe
from livingkv.recency import newest_first
from livingkv.results import NOT_STORED, Answer, Mode
from livingkv.sampling import Sampler, Sampling
from livingkv.scope import Scope
from livingkv.store import Sentence
from livingkv.stored_kv import StoredKV

MAX_TOKENS = 1 << 16
"""The longest answer that may be asked for."""

_MOST_TIED = 4


def check_ask(question: str, mode: Mode, max_tokens: int) -> None:
    """Raise QuestionError or InputError for what cannot be asked: no words, no text, an unknown mode, no tokens."""
    if not question.strip():
        raise QuestionError("question", "no words", "a question in words is needed")
    try:
        question.encode()
    except UnicodeEncodeError as error:
        raise QuestionError("question", f"a lone surrogate at {error.start}", "Unicode text is allowed") from error
    if mode not in get_args(Mode):
        raise InputError("mode", repr(mode), f"one of {', '.join(get_args(Mode))} is allowed")
    if not isinstance(max_tokens, int) or not 1 <= max_tokens <= MAX_TOKENS:
        raise InputError("max_tokens", max_tokens, f"1 to {MAX_TOKENS} is allowed")


class Asking:
    """One question to one memory.

    `prefilled_before` is the runner's count of tokens when it was asked; `recalled` are the sentences that the last
    answer was read from, `generated` its tokens, `log_probabilities` theirs, `signs` what spoke for it. `listed`: the
    names beside which each piece of an answer has to stand, set where a list is asked for. `said`: what is read as the
    question.
    """

    def __init__(self, home: Home, question: str) -> None:
        """Loads the model if need be. Raises QuestionError (longer than the hot window) or ModelError."""
        self.clock = Clock()
        self._home = home
        self._question = question
        loaded = home.load_ms
        self.engine = home.engine()
        self.clock.load = home.load_ms - loaded
        n_tokens, limit = len(self.engine.words.encode(question)), home.settings.window_tokens
        if n_tokens > limit:
            allowed = f"at most {limit} tokens, the hot window, are allowed: ingest the text instead"
            raise QuestionError("question", f"{n_tokens} tokens", allowed)
        self.prefilled_before = self.engine.runner.n_prefilled
        self._n_decoded = self._n_generated = 0
        self.recalled: list[int] = []
        self.generated: Generated | None = None
        self.signs: Signs | None = None
        self._kv: StoredKV | None = None
        self._ends: dict[int, int] = {}
        self.listed: tuple[Name, ...] | None = None
        self.said = question
        self.log_probabilities: tuple[float, ...] = ()

    @property
    def home(self) -> Home:
        """The memory that is asked."""
        return self._home

    @property
    def question(self) -> str:
        """As it was asked."""
        return self._question

    @property
    def kv(self) -> StoredKV:
        """The stored KV. A probe comes first."""
        return self._stored()

    def probe(self, session: str | Scope | None) -> Probed:
        """What the index finds in one session, in those of a scope, or in all. Raises SessionNotFound or KeyMissing."""
        home = self._home
        found = probe(home.store(), home.index.current(), self._question, Scope.of(session), home.settings.n_candidates)
        self._kv = StoredKV(home.store(), self.engine, home.pages())
        self.clock.probe = self.clock.lap() - self.clock.load
        home.watch.probed(self.clock.probe / 1000)
        return found

    def judge(self, probed: Probed) -> list[Judged]:
        """The hits as the model ranks them on their stored KV, best first, and what was said later before what it
        overrules."""
        self._ends = {row.session_id: row.n_tokens for row in probed.sessions}
        judged = judge_hits(self.engine, self._stored(), probed, self._question, self._home.n_sinks)
        return newest_first(self._question, judged)

    def passages(self, hits: Sequence[Judged], *, grown: bool = True) -> list[Passage]:
        """The hits as passages within the budget: grown to their neighbours, or each sentence alone."""
        if not grown:
            return sentence_passages(hits, self._neighbours)
        return grow_passages(hits, self._neighbours, budget_tokens=self._home.settings.recall_tokens)

    def _neighbours(self, sentence_id: int, before: int, after: int) -> list[Sentence]:
        """Those that stand within the sessions as they were judged."""
        found = self._home.store().neighbours(sentence_id, before, after)
        return [each for each in found if each.token_hi <= self._ends.get(each.session_id, each.token_hi)]

    def chosen(self, judged: Sequence[Judged]) -> list[Judged]:
        """The hits that a mode which the caller chose recalls: the first and what is nearly tied with it."""
        return list(judged[: min(max(1, n_tied(judged)), _MOST_TIED)])

    def recall(self, probed: Probed) -> list[Passage]:
        """The passages that a mode which the caller chose recalls."""
        return self.passages(self.chosen(self.judge(probed)))

    def read(
        self,
        mode: Mode,
        probed: Probed,
        passages: list[Passage] | Callable[[], list[Passage]],
        max_tokens: int,
        sampling: Sampling,
        stop: Sequence[str],
        on_text: Callable[[str], None] | None,
        reason: str,
    ) -> Answer:
        """One answer in one mode, and how sure it is. passages: where the mode does not attend them, what finds them
        once the answer is there. Raises InputError when a mode needs one session."""
        prepared = self.prepare(mode, probed, [] if callable(passages) else passages, max_tokens)
        sampler = Sampler(sampling)
        generated = self.complete(prepared, max_tokens, sampler, stop, on_text)
        passages = passages() if callable(passages) else passages
        n_prefilled = self.n_prefilled()
        self.generated = generated
        self.log_probabilities = tuple(sampler.log_probabilities[: len(generated.token_ids)])
        self.recalled = [passage.best.sentence.sentence_id for passage in passages]
        self.signs = self._checked(probed, passages, generated, sampler) if passages else None
        confidence = self.signs.confidence if self.signs is not None else 0.0
        return Answer(
            answer=generated.text.strip(),
            mode=prepared.mode,
            confident=confidence >= CONFIDENT,
            confidence=confidence,
            evidence=evidence_of(passages),
            n_tokens=probed.n_tokens,
            reused_tokens=prepared.reused_tokens,
            prefilled_tokens=n_prefilled,
            generated_tokens=self._n_generated,
            timings_ms=self.clock.timings(),
            reason=prepared.reason or reason,
        )

    def _checked(self, probed: Probed, passages: Sequence[Passage], generated: Generated, sampler: Sampler) -> Signs:
        ids, asked = generated.token_ids, question_ids(self.engine, self.said)
        n_sinks, first = self._home.n_sinks, probed.session(passages[0].session_id)
        space = attend_sinks(self.engine, self._stored(), first, n_sinks, len(asked) + len(ids))
        spoken = Spoken(self._question, asked, generated.text, ids, sampler.log_probabilities, self.listed)
        return signs_of(self.engine, space, spoken, passages)

    def prepare(self, mode: Mode, probed: Probed, passages: list[Passage], max_tokens: int) -> Prepared:
        """The workspace of one mode, ready for the question. Raises InputError when a mode needs one session."""
        preparing = Preparing(
            self.engine,
            self._stored(),
            probed,
            passages,
            self.said,
            self._home.n_sinks,
            max_tokens,
            self._home.settings.placement,
            self._home.settings.window_tokens,
        )
        prepared = self._prepared(mode, probed, preparing)
        self.clock.fetch = self.clock.lap() - self.clock.probe - self.clock.load
        return prepared

    def _prepared(self, mode: Mode, probed: Probed, preparing: Preparing) -> Prepared:
        if mode == "kv":
            return preparing.kv_mode()
        if mode == "ground":
            return preparing.ground_mode()
        if len(probed.sessions) != 1:
            raise InputError("session", "none", f"mode {mode} needs one: name a session of this store")
        if mode == "exact":
            return preparing.exact_mode(probed.sessions[0])
        with self._home.hot_window(probed.sessions[0]) as hot:
            return preparing.resume_mode(probed.sessions[0], hot)

    def complete(
        self,
        prepared: Prepared,
        max_tokens: int,
        sampler: Sampler,
        stop: Sequence[str],
        on_text: Callable[[str], None] | None,
    ) -> Generated:
        """Read what is left to read, and generate. Notes the time of the first token."""
        engine = self.engine
        logits = engine.runner.logits(engine.on_device(prepared.token_ids), prepared.state)
        tokens = engine.runner.generate(logits, prepared.state, sampler, max_tokens)
        engine.settle()
        self.clock.first_token = self.clock.lap()
        n_read = engine.runner.n_prefilled
        generated = collect(tokens, engine.words.stream(), max_tokens, stop=stop, on_text=on_text)
        self._n_decoded += engine.runner.n_prefilled - n_read
        self._n_generated += len(generated.token_ids)
        return generated

    def abstain(self, probed: Probed, passages: Sequence[Passage], reason: str) -> Answer:
        """Nothing is generated: nothing stored seems to hold the answer."""
        return Answer(
            answer=NOT_STORED,
            mode="extract",
            confident=False,
            confidence=0.0,
            evidence=evidence_of(passages),
            n_tokens=probed.n_tokens,
            reused_tokens=0,
            prefilled_tokens=self.n_prefilled(),
            generated_tokens=self._n_generated,
            timings_ms=self.clock.timings(),
            reason=reason,
        )

    def n_prefilled(self) -> int:
        """Tokens that were read for this question so far, those of answers not counted."""
        return self.engine.runner.n_prefilled - self.prefilled_before - self._n_decoded

    @property
    def n_generated(self) -> int:
        """Tokens that were generated for this question so far."""
        return self._n_generated

    def _stored(self) -> StoredKV:
        assert self._kv is not None, "probe comes first"
        return self._kv
