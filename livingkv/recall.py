"""Recall: a question to ranked sentences, their gains by the model, and passages within the token budget.

Knows the index, the store and the engine; decides nothing about modes. Candidates are scored on their
stored KV; only where that is damaged, or slower to be had, are they read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from livingkv.codec import KV
from livingkv.engine import Engine
from livingkv.errors import InputError, KeyMissing, RecordDamaged
from livingkv.index import Hit, Index
from livingkv.likelihood import Candidate, question_gains
from livingkv.passages import Judged, Passage, grow_passages
from livingkv.question import names_in
from livingkv.reading_cost import Span, slow_pages
from livingkv.scope import Scope
from livingkv.settings import Placement
from livingkv.store import Sentence, SessionRow, Store
from livingkv.stored_kv import StoredKV
from livingkv.workspace import Workspace

QUESTION_LEAD = "\n\n"
"""Between recalled text and the question inside the user message."""

JUDGED_TOKENS = 256
"""Of a longer question its end is judged: that is where people ask."""


@dataclass(frozen=True, slots=True)
class Probed:
    """Hits of the index, best first, of the sessions searched."""

    sessions: tuple[SessionRow, ...]
    hits: tuple[Judged, ...]

    @property
    def n_tokens(self) -> int:
        """Stored tokens of the sessions searched."""
        return sum(session.n_tokens for session in self.sessions)

    def session(self, session_id: int) -> SessionRow:
        """One of the searched sessions."""
        return next(session for session in self.sessions if session.session_id == session_id)


def probe(store: Store, index: Index, question: str, scope: Scope, limit: int) -> Probed:
    """Up to `limit` sentences that the index finds in the sessions of the scope. Raises SessionNotFound or KeyMissing.

    The index is asked first and the sessions are read after it, so that no hit is newer than its session's row. A
    hit whose text is damaged, that the store does not have or that is of no session of the scope is left out.
    """
    found = index.probe(question, limit=limit, session_ids=scope.ids(store))
    sessions = scope.rows(store)
    return Probed(sessions, tuple(_hits(store, index, question, found, sessions)))


def sentences_with(
    store: Store, index: Index, question: str, words: str, sessions: Sequence[SessionRow], limit: int
) -> list[Judged]:
    """Up to `limit` sentences of these sessions that hold some of the words, most of them first; not judged.

    Their coverage is that of the question. As in `probe`, what is damaged is left out.
    """
    wanted = frozenset(row.session_id for row in sessions)
    found = [
        Hit(each.sentence_id, each.session_id, each.score, each.score, None, rank, None)
        for rank, each in enumerate(index.find_words(words, limit=limit, session_ids=wanted), 1)
    ]
    return _hits(store, index, question, found, sessions)


def _hits(
    store: Store, index: Index, question: str, found: Sequence[Hit], sessions: Sequence[SessionRow]
) -> list[Judged]:
    n_tokens = {row.session_id: row.n_tokens for row in sessions}
    pairs = [(hit, sentence) for hit in found if (sentence := _stored(store, hit.sentence_id)) is not None]
    pairs = [(hit, s) for hit, s in pairs if s.token_lo < s.token_hi <= n_tokens.get(s.session_id, 0)]
    shares = index.coverage(question, [sentence.text for _, sentence in pairs])
    return [
        Judged(
            sentence,
            hit.score,
            hit.lexical,
            hit.semantic,
            share,
            salience=hit.salience or 0.0,
            lexical_rank=hit.lexical_rank,
            semantic_rank=hit.semantic_rank,
        )
        for (hit, sentence), share in zip(pairs, shares, strict=True)
    ]


def _stored(store: Store, sentence_id: int) -> Sentence | None:
    try:
        return store.sentence(sentence_id)
    except (InputError, RecordDamaged, KeyMissing):
        return None


def judge_hits(engine: Engine, kv: StoredKV, probed: Probed, question: str, n_sinks: int) -> list[Judged]:
    """The hits with their gains, best first. Where a page is damaged, or all of them would take longer to be had, the
    sentences are read again; a hit whose token ids are damaged too cannot be judged and goes last, gain None."""
    candidates: list[Candidate] = []
    judged: list[Judged] = []
    lost: list[Judged] = []
    spans = [
        Span(probed.session(hit.sentence.session_id), hit.sentence.token_lo, hit.sentence.token_hi)
        for hit in probed.hits
    ]
    again = slow_pages(engine, kv, spans) is not None
    for span in () if again else spans:
        kv.prefetch(*span)  # side by side, while the first is decoded
    for hit, span in zip(probed.hits, spans, strict=True):
        try:
            candidates.append(_candidate(kv, span, n_sinks, again=again))
            judged.append(hit)
        except RecordDamaged:
            lost.append(hit)
    if not candidates:
        return lost
    gains = _gains(engine, kv, probed.session(judged[0].sentence.session_id), candidates, question, n_sinks)
    most = max(gain.rest for gain in gains)
    ranked = [
        replace(hit, gain=gain.all, rest_gain=gain.rest, behind=most - gain.rest)
        for gain, hit in zip(gains, judged, strict=True)
    ]
    return [*sorted(ranked, key=lambda hit: -hit.rank_score), *lost]


def _candidate(kv: StoredKV, span: Span, n_sinks: int, *, again: bool) -> Candidate:
    if not again:
        try:
            return Candidate(kv.run(*span), span.token_lo)
        except RecordDamaged:
            pass
    return Candidate(kv.read_again(*span, n_sinks), n_sinks)


class _Gain(NamedTuple):
    """Nats per token: over the whole question, and over what of it is in no name."""

    all: float
    rest: float


def _gains(
    engine: Engine, kv: StoredKV, session: SessionRow, candidates: Sequence[Candidate], question: str, n_sinks: int
) -> list[_Gain]:
    sinks = Candidate(kv.sinks(session, n_sinks), 0)
    lead, encoded = engine.words.encode(QUESTION_LEAD), engine.words.encode_with_offsets(question)
    words, offsets = encoded.ids[-JUDGED_TOKENS:], encoded.offsets[-JUDGED_TOKENS:]
    names = names_in(question)
    rest = torch.tensor([not any(lo < name.hi and name.lo < hi for name in names) for lo, hi in offsets])
    gains = question_gains(engine.runner, sinks, candidates, lead, words)
    n_rest = max(1, int(rest.sum()))
    return [_Gain(float(row.mean()), float(row[rest].sum()) / n_rest) for row in gains]


def passages_for(store: Store, judged: Sequence[Judged], budget_tokens: int) -> list[Passage]:
    """The hits grown to passages within the budget."""
    return grow_passages(judged, store.neighbours, budget_tokens=budget_tokens)


def attend_sinks(engine: Engine, kv: StoredKV, session: SessionRow, n_sinks: int, extra_tokens: int) -> Workspace:
    """A workspace that attends a session's sinks, with room for `extra_tokens`; the next token follows them."""
    space = engine.workspace(n_sinks + extra_tokens)
    space.push(kv.sinks(session, n_sinks), 0)
    space.next_position = n_sinks
    return space


def attend_passages(
    engine: Engine,
    kv: StoredKV,
    probed: Probed,
    passages: Sequence[Passage],
    n_sinks: int,
    extra_tokens: int,
    placement: Placement = "compact",
) -> Workspace:
    """A workspace with sinks and the stored KV of the passages in document order, with room for `extra_tokens`.

    compact: passages re-rotated to follow the sinks and one another, the next token behind them. absolute,
    dual_chunk: they stay where they were read, the next token comes behind the longest recalled session, and the
    sinks just before it. Raises PageDamaged.
    """
    ordered = sorted(passages, key=lambda passage: (passage.session_id, passage.token_lo))
    capacity = n_sinks + sum(passage.n_tokens for passage in ordered) + extra_tokens
    for passage in ordered:
        kv.prefetch(probed.session(passage.session_id), passage.token_lo, passage.token_hi)
    space = engine.workspace(capacity, dual_chunk=placement == "dual_chunk")
    compact = placement == "compact"
    end = max(probed.session(passage.session_id).n_tokens for passage in ordered)
    sinks = kv.sinks(probed.session(ordered[0].session_id), n_sinks)
    first = 0 if compact else end - n_sinks
    space.push(KV(engine.moved(sinks.keys, first), sinks.values), first)
    for passage in ordered:
        at = space.end if compact else passage.token_lo
        kv.attend(probed.session(passage.session_id), passage.token_lo, passage.token_hi, space, at)
    space.next_position = space.end if compact else end
    return space
