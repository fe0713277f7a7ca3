"""What each answer mode attends: the workspace of one question, ready for it to be read.

Knows stored KV, passages and the hot window; generates nothing and changes nothing durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from livingkv.engine import Engine
from livingkv.errors import RecordDamaged
from livingkv.hot_window import HotWindow, window_start
from livingkv.passages import Passage
from livingkv.recall import QUESTION_LEAD, Probed, attend_passages, attend_sinks
from livingkv.results import Mode
from livingkv.settings import LookBack, Placement
from livingkv.store import SessionRow
from livingkv.stored_kv import StoredKV
from livingkv.streaming import StreamedSpace
from livingkv.workspace import AttentionState

EXACT_RUN = 2048
"""Tokens decoded at once for the device in mode exact."""

GROUND_RUN = 2048
"""Tokens of text that are read again in one forward pass."""


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
    """Sets the workspace up for one question, mode by mode. `window_tokens`: so many tokens of a session that is
    attended whole are on the device at once."""

    engine: Engine
    kv: StoredKV
    probed: Probed
    passages: Sequence[Passage]
    question: str
    n_sinks: int
    max_tokens: int
    placement: Placement = "compact"
    window_tokens: int = 4096

    def kv_mode(self) -> Prepared:
        """Stored KV of the passages; falls back to reading their text when a page is damaged."""
        ids = question_ids(self.engine, self.question)
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
        ids = [*self.engine.words.encode(text), *question_ids(self.engine, self.question)]
        first = self.probed.session(ordered[0].session_id)
        space = attend_sinks(self.engine, self.kv, first, self.n_sinks, len(ids) + self.max_tokens)
        space.pass_tokens = GROUND_RUN
        return Prepared("ground", space, ids, self.n_sinks)

    def exact_mode(self, session: SessionRow) -> Prepared:
        """All stored KV of a session at its own positions, dual-chunk where the model has it: the newest
        `window_tokens` on the device, what is older streamed through attention in each layer of each pass."""
        ids = self._ids_behind(session)
        n_cold = window_start(session.n_tokens, LookBack(self.window_tokens))
        space = self.engine.workspace(session.n_tokens - n_cold + len(ids) + self.max_tokens, dual_chunk=True)
        for lo in range(n_cold, session.n_tokens, EXACT_RUN):
            space.push(self.kv.run(session, lo, min(lo + EXACT_RUN, session.n_tokens)), lo)
        space.next_position = session.n_tokens
        if n_cold == 0:
            return Prepared("exact", space, ids, session.n_tokens)
        streamed = StreamedSpace(space, self.kv.cold(session, n_cold).layer, n_cold)
        return Prepared("exact", streamed, ids, session.n_tokens)

    def resume_mode(self, session: SessionRow, hot: HotWindow) -> Prepared:
        """A branch of the session's hot window and sinks: what is read now does not enter the session."""
        ids = self._ids_behind(session)
        space = hot.branch(len(ids) + self.max_tokens)
        return Prepared("resume", space, ids, space.n_attended)

    def _ids_behind(self, session: SessionRow) -> list[int]:
        """The question behind all of a session."""
        words = self.engine.words
        if not self.kv.is_conversation(session):
            return question_ids(self.engine, self.question)
        return [*words.framing.reopen, *words.encode(self.question), *words.framing.answer]


def question_ids(engine: Engine, question: str) -> list[int]:
    """The question behind recalled text, up to where the answer begins."""
    words = engine.words
    return [*words.encode(QUESTION_LEAD + question), *words.framing.answer]
