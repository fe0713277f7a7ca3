"""Plans that forget sentences, sources and sessions: what must go, from which records, and what stays for relatives.

Knows which records hold what is forgotten; refuses to know how bytes are erased.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from xxhash import xxh3_64_intdigest

from livingkv.errors import KeyMissing, RecordDamaged
from livingkv.store.appending import chunk_item
from livingkv.store.chunk_payload import Chunk, ChunkPlace, pack_chunk, role_of
from livingkv.store.events import Forgotten
from livingkv.store.families import erasures, relatives, unshared_pages
from livingkv.store.items import FORGOTTEN_SOURCE, ChunkItem, PageItem, PageState, SessionFlags, SessionItem
from livingkv.store.page_changes import plan_drop
from livingkv.store.plan import Plan, PlannedLog
from livingkv.store.records import Location, RecordFlags, RecordType, pack_record
from livingkv.store.rows import Append, SentenceRecord
from livingkv.store.snapshot import Snapshot

ReadChunk = Callable[[int, int, ChunkItem], Chunk]


@dataclass
class Loss:
    """What a forgetting takes, for its receipt. `key_ids`: keys that no session needs any more."""

    sentence_ids: list[int] = field(default_factory=list)
    n_tokens: int = 0
    n_bytes: int = 0
    n_pages: int = 0
    n_later_pages: int = 0
    key_ids: list[bytes] = field(default_factory=list)

    def add_sentences(self, row: ChunkItem, chunk: Chunk, numbers: list[int]) -> list[int]:
        """Count sentences by their numbers in a chunk; their ids."""
        ids = [row.first_sentence + each for each in numbers]
        self.sentence_ids += ids
        self.n_bytes += sum(span.byte_hi - span.byte_lo for span in map(chunk.sentence, numbers))
        return ids


def plan_forget_sentences(
    plan: Plan,
    snapshot: Snapshot,
    session_id: int,
    wanted: Mapping[int, set[int] | None],
    read_chunk: ReadChunk,
    page_tokens: int,
    loss: Loss,
    *,
    deep: bool,
    source: int | None = None,
) -> None:
    """Blank sentences of one session: by chunk, their numbers in it, or None for all of the chunk.

    deep: give up the KV of all later tokens too, which was computed while they attended what is forgotten.
    source: its name and digest are blanked too.
    A chunk that is damaged goes as a whole, whatever is wanted of it: nothing of it can be read any more.
    """
    session = plan.sessions.get(session_id) or snapshot.session(session_id)
    assert session is not None
    tokens: set[int] = set()
    others = relatives(snapshot, session_id, session)
    n_forgotten = 0
    for number, own in wanted.items():
        row = snapshot.chunk(session_id, number)
        chunk, is_whole = _read_or_blank(snapshot, session_id, session, number, row, read_chunk, page_tokens)
        own = own if is_whole else None
        numbers = (set(range(chunk.n_sentences)) if own is None else own) - chunk.forgotten
        if not numbers and own is not None:
            continue
        tokens |= _rewrite(plan, session_id, number, row, chunk, numbers, blank_all=own is None, source=source)
        if row.location.segment and all(not _shares(snapshot, other, number, row.location) for other in others):
            plan.erasures += erasures([row.location], overwrite=True)
        plan.removed_weights += loss.add_sentences(row, chunk, sorted(numbers))
        n_forgotten += len(numbers)
    loss.n_tokens += len(tokens)
    session = session._replace(n_forgotten=session.n_forgotten + n_forgotten)
    if tokens and session.tail_bytes and (deep or max(tokens) >= session.n_sealed_tokens):
        session = _without_tail(plan, session_id, session)
    plan.sessions[session_id] = session
    _drop_kv(plan, snapshot, session_id, session, tokens, page_tokens, loss, deep=deep)


def _read_or_blank(
    snapshot: Snapshot,
    session_id: int,
    session: SessionItem,
    number: int,
    row: ChunkItem,
    read_chunk: ReadChunk,
    page_tokens: int,
) -> tuple[Chunk, bool]:
    """A chunk and True, or what stands for a damaged one and False."""
    try:
        return read_chunk(session_id, number, row), True
    except RecordDamaged:
        return _blank(snapshot, session_id, session, number, row, read_chunk, page_tokens), False


def _blank(
    snapshot: Snapshot,
    session_id: int,
    session: SessionItem,
    number: int,
    row: ChunkItem,
    read_chunk: ReadChunk,
    page_tokens: int,
) -> Chunk:
    """What stands for a damaged chunk: as long as its row says, its sentences a byte each and the last the rest."""
    source = snapshot.source(session_id, row.source)
    ends = [*range(1, row.n_sentences), row.n_bytes] if row.n_sentences else []
    first, token = row.first_byte, row.first_token
    append = Append(
        session_id=session_id,
        first_token=token,
        token_ids=np.zeros(row.n_tokens, dtype=np.int32),
        text=b" " * row.n_bytes,
        sentences=tuple(SentenceRecord(first + n, first + end, token, token) for n, end in enumerate(ends)),
        source=source.name,
        role=role_of(row.role),
        end_of_source=source.complete and number == max(snapshot.source_chunks(session_id, row.source, 0)),
        source_digest=source.digest,
        ends_turn=role_of(row.role) == "assistant",
    )
    n_known = 0  # which of its own sentences were forgotten before is lost; how many, the others tell
    for other, each in snapshot.chunks(session_id) if session.n_forgotten else ():
        if other != number:
            with contextlib.suppress(RecordDamaged):
                n_known += len(read_chunk(session_id, other, each).forgotten)
    n_before = min(row.n_sentences, max(0, session.n_forgotten - n_known))
    place = ChunkPlace(token, first, row.first_sentence, session.created_ms)
    n_pages = (token + row.n_tokens) // page_tokens - token // page_tokens
    return Chunk(pack_chunk(append, place, n_sealed_pages=n_pages, forgotten=range(n_before)).payload)


def _shares(snapshot: Snapshot, other: int, number: int, place: Location) -> bool:
    item = snapshot.session(other)
    return item is not None and number < item.n_chunks and snapshot.chunk(other, number).location == place


def _rewrite(
    plan: Plan,
    session_id: int,
    number: int,
    row: ChunkItem,
    chunk: Chunk,
    numbers: set[int],
    *,
    blank_all: bool,
    source: int | None,
) -> set[int]:
    """Plan a chunk's record without some sentences; the tokens that were blanked."""
    append, tokens = _blanked(session_id, row, chunk, numbers, blank_all=blank_all, source=source)
    place = chunk.place._replace(first_sentence=row.first_sentence)
    forgotten = sorted(chunk.forgotten | numbers)
    packed = pack_chunk(append, place, n_sealed_pages=chunk.n_pages, forgotten=forgotten)
    sequence = plan.state.next_sequence
    record = pack_record(RecordType.CHUNK, RecordFlags.NONE, session_id, number, sequence, packed.payload)
    plan.log.append(PlannedLog(session_id, number, record, chunk_item(append, place, packed, row.source, sequence)))
    plan.state = plan.state._replace(next_sequence=sequence + 1)
    return tokens


def _blanked(
    session_id: int, row: ChunkItem, chunk: Chunk, numbers: set[int], *, blank_all: bool, source: int | None
) -> tuple[Append, set[int]]:
    """A chunk as it is appended anew, spaces and zeros for what is forgotten; and the tokens that are zeros now."""
    text, ids = bytearray(chunk.text()), chunk.token_ids().copy()
    spans = [chunk.sentence(each) for each in range(chunk.n_sentences)]
    tokens: set[int] = set()
    for each in numbers:
        lo, hi = spans[each].byte_lo - row.first_byte, spans[each].byte_hi - row.first_byte
        text[lo:hi] = b" " * (hi - lo)
        tokens |= set(range(spans[each].token_lo, spans[each].token_hi))
    if blank_all:
        tokens = set(range(row.first_token, row.first_token + row.n_tokens))
    for token in tokens:
        ids[token - row.first_token] = 0
    append = Append(
        session_id=session_id,
        first_token=row.first_token,
        token_ids=ids,
        text=bytes(text),
        sentences=tuple(SentenceRecord(*span) for span in spans),
        source=chunk.source if source is None else "",
        role=role_of(row.role),
        end_of_source=chunk.end_of_source,
        source_digest=chunk.source_digest if source is None else f"{FORGOTTEN_SOURCE}{source}",
        ends_turn=chunk.ends_turn,
    )
    return append, tokens


def _without_tail(plan: Plan, session_id: int, session: SessionItem) -> SessionItem:
    plan.tails[session_id] = b""
    flags = session.flags | SessionFlags.NEEDS_TAIL
    return session._replace(tail_bytes=0, tail_checksum=xxh3_64_intdigest(b""), flags=flags)


def _drop_kv(
    plan: Plan,
    snapshot: Snapshot,
    session_id: int,
    session: SessionItem,
    tokens: set[int],
    page_tokens: int,
    loss: Loss,
    *,
    deep: bool,
) -> None:
    """Give up the pages that hold forgotten tokens, and if `deep` those that attended them."""
    n_pages = session.n_sealed_tokens // page_tokens
    pages = {token // page_tokens for token in tokens if token < session.n_sealed_tokens}
    later = [page for page in range(min(tokens) // page_tokens if tokens else n_pages, n_pages) if page not in pages]
    rows = dict(snapshot.pages_of(session_id))
    held, held_later = ([(page, rows[page]) for page in each if page in rows] for each in (pages, later))
    loss.n_pages += len(unshared_pages(snapshot, session_id, session, held))
    loss.n_later_pages += len(unshared_pages(snapshot, session_id, session, held_later))
    options = (page_tokens,)
    session = plan_drop(
        plan, snapshot, session_id, session, pages, PageState.FORGOTTEN, *options, overwrite=True, ends_commit=False
    )
    if deep:
        plan_drop(
            plan, snapshot, session_id, session, later, PageState.DROPPED, *options, overwrite=True, ends_commit=False
        )


def plan_forget_sessions(
    plan: Plan, snapshot: Snapshot, session_ids: Iterable[int], read_chunk: ReadChunk, loss: Loss
) -> None:
    """Whole sessions go; what relatives share stays for them."""
    gone = set(session_ids)
    places: dict[Location, None] = {}
    for session_id in sorted(gone):
        session = snapshot.session(session_id)
        assert session is not None
        others = [other for other in relatives(snapshot, session_id, session) if other not in gone]
        places |= {place: None for _, place in snapshot.events(session_id)}
        for number, row in snapshot.chunks(session_id):
            loss.sentence_ids += _living(session_id, session, number, row, read_chunk)
            if all(not _shares(snapshot, other, number, row.location) for other in others):
                places[row.location] = None
        pages = dict(snapshot.pages_of(session_id))
        erased = dict.fromkeys(_unshared(snapshot, session_id, session, pages, others))
        loss.n_pages += len(erased.keys() - places.keys())
        places |= erased
        loss.n_tokens += session.n_tokens
        loss.n_bytes += session.n_bytes
        plan.add_event(session_id, session, Forgotten(), ends_commit=False)
        del plan.sessions[session_id]
        plan.gone.append((session_id, session.name))
    kept = {item.key_id for session_id, item in snapshot.sessions() if session_id not in gone}
    lost = {item.key_id for session_id, item in snapshot.sessions() if session_id in gone}
    loss.key_ids += sorted(lost - kept - {b""})
    plan.removed_weights += loss.sentence_ids
    plan.erasures += erasures((place for place in places if place.segment), overwrite=True)


def _living(session_id: int, session: SessionItem, number: int, row: ChunkItem, read_chunk: ReadChunk) -> Iterable[int]:
    """The sentences of a chunk that were not forgotten before; all, where it cannot be read any more."""
    ids = range(row.first_sentence, row.first_sentence + row.n_sentences)
    if not session.n_forgotten:
        return ids
    try:
        forgotten = read_chunk(session_id, number, row).forgotten
    except (RecordDamaged, KeyMissing):
        return ids
    return [each for each in ids if each - row.first_sentence not in forgotten]


def _unshared(
    snapshot: Snapshot, session_id: int, session: SessionItem, pages: Mapping[int, PageItem], others: list[int]
) -> list[Location]:
    if others:
        return unshared_pages(snapshot, session_id, session, pages.items())
    return [row.location for row in pages.values() if row.state is PageState.PRESENT]
