"""One question on its way: the steps of the read loop, its clock and its honest counts.

Knows the order in which memory.py calls it and what every step hands on; changes nothing durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import get_args

import torch

from livingkv.confidence import Verdict, judge, judge_words
from livingkv.errors import InputError, QuestionError
from livingkv.generation import Generated, collect
from livingkv.home import Home
from livingkv.modes import Prepared, Preparing
from livingkv.passages import Judged, Passage
from livingkv.reading_cost import Span, slow_pages
from livingkv.recall import Probed, alone_or_grown, judge_hits, passages_for, probe
from livingkv.results import Answer, Evidence, Mode, Timings
from livingkv.sampling import Sampler, Sampling
from livingkv.stored_kv import StoredKV

MAX_TOKENS = 1 << 16
"""The longest answer that may be asked for."""

NOT_STORED = "Nothing that is stored answers this."
"""The answer of mode auto when it is not confident: a statement, not an invention."""


@dataclass(slots=True)
class Clock:
    """Wall time of the steps of one question, in milliseconds; `first_token` counts from the start."""

    started: float = field(default_factory=perf_counter)
    load: float = 0.0
    probe: float = 0.0
    fetch: float = 0.0
    first_token: float = 0.0

    def lap(self) -> float:
        """Milliseconds since the start."""
        return (perf_counter() - self.started) * 1000.0

    def timings(self) -> Timings:
        """The steps so far."""
        return Timings(self.load, self.probe, self.fetch, self.first_token, self.lap())


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
    """One question to one memory. `prefilled_before` is the runner's count of tokens when it was asked."""

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
        self._n_prefilled = 0
        self._kv: StoredKV | None = None

    def probe(self, session: str | None) -> Probed:
        """What the index finds, in one session or in all. Raises SessionNotFound."""
        home = self._home
        found = probe(home.store(), home.index.current(), self._question, session, home.settings.n_candidates)
        self._kv = StoredKV(home.store(), self.engine, home.pages())
        self.clock.probe = self.clock.lap() - self.clock.load
        return found

    def judge(self, probed: Probed) -> tuple[list[Judged], Verdict]:
        """The hits as the model ranks them on their stored KV, and what that says."""
        judged = judge_hits(self.engine, self._stored(), probed, self._question, self._home.n_sinks)
        return judged, judge(judged)

    def affordable(self, verdict: Verdict, probed: Probed, hits: Sequence[Judged]) -> Verdict:
        """The verdict; with mode ground in the place of kv where the disk is slower than the model."""
        if verdict.mode != "kv":
            return verdict
        passages = passages_for(self._home.store(), hits[: verdict.n_recalled], self._home.settings.recall_tokens)
        spans = [Span(probed.session(each.session_id), each.token_lo, each.token_hi) for each in passages]
        slow = slow_pages(self.engine, self._stored(), spans)
        if slow is None:
            return verdict
        return replace(verdict, mode="ground", reason=f"one sentence stands out; {slow.reason}")

    def passages(self, mode: Mode, probed: Probed, hits: Sequence[Judged]) -> list[Passage]:
        """The hits grown within the budget; a single one for mode kv only as far as its neighbours help."""
        passages = passages_for(self._home.store(), hits, self._home.settings.recall_tokens)
        if mode == "kv" and len(passages) == 1:
            kv, n_sinks = self._stored(), self._home.n_sinks
            return [alone_or_grown(self.engine, kv, probed, self._question, n_sinks, passages[0])]
        return passages

    def prepare(self, mode: Mode, probed: Probed, passages: list[Passage], max_tokens: int) -> Prepared:
        """The workspace of one mode, ready for the question. Raises InputError when a mode needs one session."""
        preparing = Preparing(
            self.engine,
            self._stored(),
            probed,
            passages,
            self._question,
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
            return preparing.resume_mode(hot)

    def complete(
        self,
        prepared: Prepared,
        max_tokens: int,
        sampling: Sampling,
        stop: Sequence[str],
        on_text: Callable[[str], None] | None,
    ) -> Generated:
        """Read what is left to read, and generate. Notes the time of the first token."""
        engine = self.engine
        logits = engine.runner.logits(torch.tensor(prepared.token_ids, device=engine.model.device), prepared.state)
        tokens = engine.runner.generate(logits, prepared.state, Sampler(sampling), max_tokens)
        self.clock.first_token = self.clock.lap()
        self._n_prefilled = engine.runner.n_prefilled - self.prefilled_before
        return collect(tokens, engine.words.stream(), max_tokens, stop=stop, on_text=on_text)

    def abstain(self, probed: Probed, passages: Sequence[Passage], verdict: Verdict) -> Answer:
        """Nothing is generated: nothing stored seems to hold the answer."""
        return Answer(
            answer=NOT_STORED,
            mode=verdict.mode,
            confident=False,
            confidence=verdict.confidence,
            evidence=evidence_of(passages),
            n_tokens=probed.n_tokens,
            reused_tokens=0,
            prefilled_tokens=self.engine.runner.n_prefilled - self.prefilled_before,
            timings_ms=self.clock.timings(),
            reason=verdict.reason,
        )

    def answer(
        self,
        generated: Generated,
        prepared: Prepared,
        probed: Probed,
        passages: Sequence[Passage],
        verdict: Verdict,
    ) -> Answer:
        """The answer with evidence, confidence and counts; a mode that fell back to another says why."""
        return Answer(
            answer=generated.text.strip(),
            mode=prepared.mode,
            confident=verdict.confident,
            confidence=verdict.confidence,
            evidence=evidence_of(passages),
            n_tokens=probed.n_tokens,
            reused_tokens=prepared.reused_tokens,
            prefilled_tokens=self._n_prefilled,
            timings_ms=self.clock.timings(),
            reason=prepared.reason or verdict.reason,
        )

    def _stored(self) -> StoredKV:
        assert self._kv is not None, "probe comes first"
        return self._kv


def extract(home: Home, question: str, session: str | None) -> Answer:
    """Mode extract: the stored text of the best sentence, verbatim. The index alone decides; no model is loaded.

    Raises QuestionError, SessionNotFound or StoreError.
    """
    clock = Clock()
    probed = probe(home.store(), home.index.current(), question, session, home.settings.n_candidates)
    clock.probe = clock.lap()
    verdict = judge_words(probed.hits)
    passages = passages_for(home.store(), probed.hits[: verdict.n_recalled], home.settings.recall_tokens)
    clock.fetch = clock.lap() - clock.probe
    return Answer(
        answer=passages[0].best.sentence.text.strip() if passages else NOT_STORED,
        mode="extract",
        confident=verdict.confident,
        confidence=verdict.confidence,
        evidence=evidence_of(passages),
        n_tokens=probed.n_tokens,
        reused_tokens=0,
        prefilled_tokens=0,
        timings_ms=clock.timings(),
        reason=verdict.reason,
    )


def asked_for(verdict: Verdict, mode: Mode) -> Verdict:
    """The verdict for a mode that the caller chose."""
    return replace(verdict, mode=mode, reason="asked for")


def evidence_of(passages: Sequence[Passage]) -> tuple[Evidence, ...]:
    """The passages as evidence, best first, with what ranked them: the judged rank score, else the index's."""
    return tuple(
        Evidence(
            text=passage.text,
            source=passage.source,
            session=passage.session,
            tokens=(passage.token_lo, passage.token_hi),
            score=passage.best.score if passage.best.gain is None else passage.best.rank_score,
            lexical=passage.best.lexical,
            semantic=passage.best.semantic,
        )
        for passage in passages
    )
