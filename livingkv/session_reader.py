"""Reads text into a session's hot window and says what must be stored of it.

Knows sentences, tokens and the hot window; knows no store, only what one of its appends holds. What was read here
is not durable: until the store has the appends, the hot window is ahead of it, and after an error it must be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from torch import Tensor

from livingkv.engine import Engine
from livingkv.generation import Generated
from livingkv.hot_window import HotWindow
from livingkv.store import Append, Role, SentenceRecord, SessionRow
from livingkv.text import SentenceSpan, split_sentences
from livingkv.writing import Draft


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a text comes from: the fields of an append that are not KV."""

    source: str
    role: Role
    source_digest: str = ""
    end_of_source: bool = True


@dataclass(slots=True)
class SessionReader:
    """One session's reading end: a hot window, and how many tokens and bytes the session has with what was read
    here.

    hot: None for a text-only session: ids and sentences are described, nothing is run through the model.
    n_reused: stored tokens that the first thing read here attends.
    """

    engine: Engine
    hot: HotWindow | None
    session_id: int
    n_tokens: int
    n_bytes: int
    n_reused: int
    _framed: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, engine: Engine, hot: HotWindow | None, session: SessionRow) -> SessionReader:
        """The reading end of a stored session whose hot window is `hot`. A new session begins with the prologue."""
        assert hot is None or hot.n_tokens == session.n_tokens, "the hot window is the session's"
        reader = cls(engine, hot, session.session_id, session.n_tokens, session.n_bytes, hot.n_attended if hot else 0)
        if session.n_tokens == 0:
            reader.frame(engine.words.framing.prologue)
        return reader

    def frame(self, token_ids: Sequence[int]) -> None:
        """Read template tokens; they become part of the next append."""
        self._read(token_ids)
        self._framed.extend(token_ids)

    @property
    def has_framing(self) -> bool:
        """True when template tokens were read that no append holds yet."""
        return bool(self._framed)

    def flush(self) -> Append:
        """An append of the framing alone."""
        return self._draft((), b"", (), Origin("", "template")).finished()

    def read_text(
        self, text: bytes, spans: Sequence[SentenceSpan], origin: Origin, *, ends_turn: bool = False
    ) -> Append:
        """Read a text whose sentences are `spans`; the append that makes it and the framing before it durable."""
        return self.read_ahead(text, spans, origin, ends_turn=ends_turn).finished()

    def read_ahead(
        self, text: bytes, spans: Sequence[SentenceSpan], origin: Origin, *, ends_turn: bool = False
    ) -> Draft:
        """Like `read_text`, without waiting for the device: the append is finished where it is written."""
        encoded = self.engine.words.encode_sentences(text, spans)
        first = self.n_tokens + len(self._framed)
        self._read(encoded.token_ids)
        records = self._records(spans, encoded.sentence_tokens, first)
        return self._draft(encoded.token_ids, text, records, origin, ends_turn=ends_turn)

    def open_answer(self) -> Tensor:
        """Close the user's message and open the assistant's; the logits of the answer's first token [1, 1,
        vocabulary]."""
        assert self.hot is not None, "a text-only session holds no conversation"
        ids = self.engine.words.framing.answer
        self._framed.extend(ids)
        return self.engine.runner.logits(self.engine.on_device(ids), self.hot)

    def close_answer(self, generated: Generated, origin: Origin) -> Append:
        """Close the assistant's message and open a user's; the append that makes the turn's second half durable."""
        assert self.hot is not None
        ids, framing = generated.token_ids, self.engine.words.framing
        n_read = self.hot.n_tokens - self.n_tokens - len(self._framed)
        self._read([*ids[n_read:], *framing.reopen])
        text = "".join(generated.pieces).encode()
        spans = split_sentences(text) if text else []
        starts = np.cumsum([0, *(len(piece.encode()) for piece in generated.pieces)])[: len(ids)]
        borders = np.searchsorted(starts, [*(span.byte_lo for span in spans), len(text)]).tolist()
        tokens = list(pairwise(borders))
        records = self._records(spans, tokens, self.n_tokens + len(self._framed))
        return self._draft([*ids, *framing.reopen], text, records, origin, ends_turn=True).finished()

    def _records(
        self, spans: Sequence[SentenceSpan], tokens: Sequence[tuple[int, int]], first_token: int
    ) -> tuple[SentenceRecord, ...]:
        return tuple(
            SentenceRecord(span.byte_lo + self.n_bytes, span.byte_hi + self.n_bytes, lo + first_token, hi + first_token)
            for span, (lo, hi) in zip(spans, tokens, strict=True)
        )

    def _read(self, token_ids: Sequence[int]) -> None:
        if token_ids and self.hot is not None:
            self.engine.runner.read(self.engine.on_device(token_ids), self.hot)

    def _draft(
        self,
        token_ids: Sequence[int],
        text: bytes,
        sentences: tuple[SentenceRecord, ...],
        origin: Origin,
        *,
        ends_turn: bool = False,
    ) -> Draft:
        ids, self._framed = [*self._framed, *token_ids], []
        append = Append(
            session_id=self.session_id,
            first_token=self.n_tokens,
            token_ids=np.array(ids, np.int32),
            text=text,
            sentences=sentences,
            source=origin.source,
            role=origin.role,
            end_of_source=origin.end_of_source,
            source_digest=origin.source_digest,
            ends_turn=ends_turn,
        )
        self.n_tokens += len(ids)
        self.n_bytes += len(text)
        assert self.hot is None or self.n_tokens == self.hot.n_tokens, "all tokens of the hot window are accounted for"
        return Draft(append, self.hot.spill() if self.hot else None)
