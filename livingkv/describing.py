"""Store rows and chat turns as the library's typed results. Knows names and units; computes nothing but a ratio."""

from __future__ import annotations

from livingkv.errors import KeyMissing
from livingkv.results import Hot, SessionInfo, Stats, Timings, Turn
from livingkv.store import SessionRow, Store


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


def store_stats(store: Store) -> Stats:
    """A store's counts and bytes."""
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
    )


def hottest_sentences(store: Store, limit: int) -> list[Hot]:
    """The sentences of a store that were recalled most and latest, warmest first; without those of encrypted sessions
    whose key is not there."""
    found = []
    for each in store.hottest(limit):
        try:
            sentence = store.sentence(each.sentence_id)
        except KeyMissing:
            continue
        text, source, session = sentence.text.strip(), sentence.source, sentence.session
        found.append(Hot(text, source, session, each.weight, each.hits, each.sentence_id))
    return found


def turn_of(row: SessionRow, answer: str, reused: int, prefilled: int, timings_ms: Timings) -> Turn:
    """A chat turn that is kept; `row` is its session behind it."""
    return Turn(
        answer=answer,
        mode="resume",
        confident=True,
        confidence=1.0,
        evidence=(),
        n_tokens=row.n_tokens,
        reused_tokens=reused,
        prefilled_tokens=prefilled,
        timings_ms=timings_ms,
        reason="the conversation goes on from its stored state",
        turn=row.n_turns,
    )
