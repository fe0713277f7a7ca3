"""Store rows, passages and chat turns as the library's typed results. Knows names and units; computes nothing but a
ratio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from livingkv.errors import KeyMissing, RecordDamaged, SentenceForgotten
from livingkv.passages import Judged, Passage
from livingkv.results import (
    AddedMessages,
    Answer,
    Evidence,
    Hit,
    Hot,
    SessionInfo,
    Stats,
    StoredSentence,
    TierStats,
    Timings,
    Turn,
)
from livingkv.store import Sentence, SentenceWeight, SessionRow, Store
from livingkv.tiers import TierCounts


def session_info(row: SessionRow) -> SessionInfo:
    """A session as users see it."""
    return SessionInfo(
        name=row.name,
        session_id=row.session_id,
        n_tokens=row.n_tokens,
        n_bytes=row.n_bytes,
        n_sentences=row.n_sentences,
        n_turns=row.n_turns,
        created_s=row.created_s,
        updated_s=row.updated_s,
        sources=row.sources,
        encrypted=row.encrypted,
    )


def tier_stats(counts: TierCounts, ram_budget_bytes: int) -> TierStats:
    """What the tiers of an open memory hold and did."""
    ram, disk = counts.ram, counts.lower[0]
    return TierStats(
        ram_bytes=ram.size_bytes,
        ram_budget_bytes=ram_budget_bytes,
        n_pages=ram.n_pages,
        n_hits=ram.n_hits + ram.n_joined,
        n_misses=ram.n_misses,
        n_evicted=ram.n_evicted,
        disk_pages=disk.n_pages,
        disk_bytes=disk.n_bytes,
        disk_seconds=disk.seconds,
    )


def tiers_together(before: TierStats | None, now: TierStats | None) -> TierStats | None:
    """What tiers did that were let go, added to what those do that are open. None where there is neither."""
    if before is None:
        return now
    if now is None:
        return replace(before, ram_bytes=0, n_pages=0)
    return replace(
        now,
        n_hits=before.n_hits + now.n_hits,
        n_misses=before.n_misses + now.n_misses,
        n_evicted=before.n_evicted + now.n_evicted,
        disk_pages=before.disk_pages + now.disk_pages,
        disk_bytes=before.disk_bytes + now.disk_bytes,
        disk_seconds=before.disk_seconds + now.disk_seconds,
    )


def store_stats(store: Store, tiers: TierStats | None = None) -> Stats:
    """A store's counts and bytes, and what an open memory's tiers did."""
    stats = store.stats()
    return Stats(
        path=str(store.path),
        model=store.labels.get("model", ""),
        codec=store.fingerprint.codec,
        n_sessions=stats.n_sessions,
        n_tokens=stats.n_tokens,
        n_sentences=stats.n_sentences,
        n_pages=stats.n_pages,
        size_bytes=stats.size_bytes,
        bytes_by_part=stats.bytes_by_part,
        bytes_per_token=stats.size_bytes / stats.n_tokens if stats.n_tokens else None,
        bf16_bytes_per_token=int(store.labels.get("bf16_bytes_per_token", 0)) or None,
        held_bytes=stats.held_bytes,
        disk_budget_bytes=stats.disk_budget_bytes,
        tiers=tiers,
    )


def hottest_sentences(store: Store, limit: int) -> list[Hot]:
    """The sentences of a store that were recalled most and latest, warmest first; without those of encrypted sessions
    whose key is not there."""
    found = []
    for each in store.hottest(limit):
        try:
            sentence = store.sentence(each.sentence_id)
        except (KeyMissing, SentenceForgotten, RecordDamaged):  # forgotten since, or damaged, which `check` names
            continue
        text, source, session = sentence.text.strip(), sentence.source, sentence.session
        found.append(Hot(text, source, session, each.weight, each.hits, each.sentence_id))
    return found


def turn_of(
    row: SessionRow, answer: str, memory: Answer | None, reused: int, prefilled: int, timings_ms: Timings
) -> Turn:
    """A chat turn that is kept; `row` is its session behind it, `memory` what was found beside the conversation."""
    recalled = memory is not None and memory.confident
    reason = "the conversation goes on from its stored state"
    if memory is not None:
        reason = f"recalled: {memory.reason}" if recalled else f"{reason}; memory was asked: {memory.reason}"
    return Turn(
        answer=answer,
        mode=memory.mode if memory is not None and recalled else "resume",
        confident=memory is None or recalled,
        confidence=1.0 if memory is None else memory.confidence,
        evidence=memory.evidence if memory is not None and recalled else (),
        n_tokens=row.n_tokens,
        reused_tokens=reused + (memory.reused_tokens if memory is not None else 0),
        prefilled_tokens=prefilled,
        timings_ms=timings_ms,
        reason=reason,
        turn=row.n_turns,
    )


def added_messages(
    before: SessionRow,
    after: SessionRow,
    n_messages: int,
    seconds: float,
    *,
    sentence_ids: Iterable[int],
    n_reused: int,
    n_prefilled: int,
) -> AddedMessages:
    """What was added to a session, of which the rows before and after are given."""
    return AddedMessages(
        session=after.name,
        n_messages=n_messages,
        n_bytes=after.n_bytes - before.n_bytes,
        n_tokens=after.n_tokens - before.n_tokens,
        n_sentences=after.n_sentences - before.n_sentences,
        turn=after.n_turns,
        seconds=seconds,
        sentence_ids=tuple(sentence_ids),
        reused_tokens=n_reused,
        prefilled_tokens=n_prefilled,
    )


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
            role=passage.best.sentence.role,
            sentence_id=passage.best.sentence.sentence_id,
            lexical_rank=passage.best.lexical_rank,
            semantic_rank=passage.best.semantic_rank,
            coverage=passage.best.coverage,
        )
        for passage in passages
    )


def hit_of(found: Judged) -> Hit:
    """A hit of the index as users see it."""
    sentence = found.sentence
    return Hit(
        sentence_id=sentence.sentence_id,
        text=sentence.text.strip(),
        source=sentence.source,
        session=sentence.session,
        role=sentence.role,
        tokens=(sentence.token_lo, sentence.token_hi),
        score=found.score,
        lexical=found.lexical,
        semantic=found.semantic,
        lexical_rank=found.lexical_rank,
        semantic_rank=found.semantic_rank,
        coverage=found.coverage,
    )


def stored_sentences(store: Store, sentences: Sequence[Sentence]) -> list[StoredSentence]:
    """Sentences with their weights."""
    weights = store.weights_of(each.sentence_id for each in sentences)
    return [_stored_sentence(each, weights.get(each.sentence_id)) for each in sentences]


def _stored_sentence(sentence: Sentence, weight: SentenceWeight | None) -> StoredSentence:
    return StoredSentence(
        sentence_id=sentence.sentence_id,
        text=sentence.text.strip(),
        source=sentence.source,
        session=sentence.session,
        role=sentence.role,
        tokens=(sentence.token_lo, sentence.token_hi),
        weight=0.0 if weight is None else weight.weight,
        n_recalls=0 if weight is None else weight.hits,
        recalled_s=None if weight is None else weight.recalled_s,
        created_s=sentence.created_s,
    )
