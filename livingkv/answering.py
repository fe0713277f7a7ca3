"""Answering: a question to an answer in one of the modes, with evidence, confidence and honest counts.

Knows the read loop's steps and puts them together; memory.py shows them in one screen. Changes nothing durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from livingkv.engine import Engine
from livingkv.errors import RecordDamaged
from livingkv.generation import Generated, collect
from livingkv.hot_window import HotWindow
from livingkv.passages import Passage
from livingkv.recall import QUESTION_LEAD, Probed, attend_passages, attend_sinks
from livingkv.results import Evidence, Mode
from livingkv.sampling import Sampler, Sampling
from livingkv.settings import Placement
from livingkv.store import SessionRow
from livingkv.stored_kv import StoredKV
from livingkv.workspace import AttentionState

EXACT_RUN = 2048
"""Tokens decoded at once in mode exact."""

NOT_STORED = "Nothing that is stored answers this."
"""The answer of mode auto when it is not confident: a statement, not an invention."""


@dataclass(slots=True)
class Clock:
    """Wall time of the steps of one question, in milliseconds since it was asked."""

    started: float
    probe: float = 0.0
    fetch: float = 0.0
    first_token: float = 0.0

    load: float = 0.0

    def lap(self) -> float:
        """Milliseconds since the start."""
        return (perf_counter() - self.started) * 1000.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is left to do for an answer: read `token_ids` into `state`, then generate. `mode` is the mode that it came
    to."""

    mode: Mode
    state: AttentionState
    token_ids: list[int]
    reused_tokens: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Preparing:
    """Sets the workspace up for one question, mode by mode. `extra_tokens`: room for the question and the answer."""

    engine: Engine
    kv: StoredKV
    probed: Probed
    passages: Sequence[Passage]
    question: str
    n_sinks: int
    max_tokens: int
    placement: Placement = "compact"

    def kv_mode(self) -> Prepared:
        """Stored KV of the passages; falls back to reading their text when a page is damaged."""
        ids = self._question()
        try:
            space = attend_passages(
                self.engine,
                self.kv,
                self.probed,
                self.passages,
                self.n_sinks,
                len(ids) + self.max_tokens,
                self.placement,
            )
        except RecordDamaged as error:
            grounded = self.ground_mode()
            return replace(grounded, reason=f"stored KV could not be used, its text was read again ({error})")
        return Prepared("kv", space, ids, space.n_attended)

    def ground_mode(self) -> Prepared:
        """The passages' text, read again behind the stored sinks."""
        ordered = sorted(self.passages, key=lambda passage: (passage.session_id, passage.token_lo))
        text = "\n\n".join(passage.text for passage in ordered)
        ids = [*self.engine.words.encode(text), *self._question()]
        first = self.probed.session(ordered[0].session_id)
        space = attend_sinks(self.engine, self.kv, first, self.n_sinks, len(ids) + self.max_tokens)
        return Prepared("ground", space, ids, self.n_sinks)

    def exact_mode(self, session: SessionRow) -> Prepared:
        """All stored KV of a session at its own positions, dual-chunk where the model has it."""
        ids = self._question()
        space = self.engine.workspace(session.n_tokens + len(ids) + self.max_tokens, dual_chunk=True)
        for lo in range(0, session.n_tokens, EXACT_RUN):
            space.push(self.kv.run(session, lo, min(lo + EXACT_RUN, session.n_tokens)), lo)
        space.next_position = session.n_tokens
        return Prepared("exact", space, ids, session.n_tokens)

    def resume_mode(self, hot: HotWindow) -> Prepared:
        """The session's hot window and sinks, copied: what is read now does not enter the session."""
        ids = self._question()
        space = hot.branch(len(ids) + self.max_tokens)
        return Prepared("resume", space, ids, space.n_attended)

    def _question(self) -> list[int]:
        """The question behind recalled text, up to where the answer begins."""
        words = self.engine.words
        return [*words.encode(QUESTION_LEAD + self.question), *words.framing.answer]


def complete(
    engine: Engine,
    state: AttentionState,
    token_ids: Sequence[int],
    *,
    max_tokens: int,
    sampling: Sampling,
    clock: Clock,
    on_text: Callable[[str], None] | None = None,
    stop: Sequence[str] = (),
) -> Generated:
    """Read `token_ids` into the state and generate from there. Notes the time of the first token."""
    logits = engine.runner.logits(torch.tensor(token_ids, device=engine.model.device), state)
    tokens = engine.runner.generate(logits, state, Sampler(sampling), max_tokens)
    clock.first_token = clock.lap()
    return collect(tokens, engine.words.stream(), max_tokens, stop=stop, on_text=on_text)


def evidence_of(passages: Sequence[Passage]) -> tuple[Evidence, ...]:
    """The passages as evidence, best first. The score is the gain where the model judged, else the index's."""
    return tuple(
        Evidence(
            text=passage.text,
            source=passage.source,
            session=passage.session,
            tokens=(passage.token_lo, passage.token_hi),
            score=passage.best.score if passage.best.gain is None else passage.best.gain,
            lexical=passage.best.lexical,
            semantic=passage.best.semantic,
        )
        for passage in passages
    )
