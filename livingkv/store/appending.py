"""What an append means: checked against its session, then laid out as records and catalog rows.

Knows sessions, sources, chunks and pages; refuses to know files and transactions. Changes nothing:
a `Plan` is committed elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from livingkv.errors import InputError, SessionExists, SessionNotFound
from livingkv.store.catalog import Changes
from livingkv.store.chunk_payload import ROLES, ChunkPlace, PackedChunk, pack_chunk, role_number
from livingkv.store.items import ChunkItem, PageItem, SessionItem, SourceItem, State
from livingkv.store.records import Location, Record, RecordFlags, RecordType, pack_record, record_bytes
from livingkv.store.rows import Append
from livingkv.store.snapshot import Snapshot

NAME_BYTES = 255


class PlannedPage(NamedTuple):
    """A page whose record is ready."""

    session_id: int
    page: int
    record: Record


class PlannedLog(NamedTuple):
    """A log record that is ready, and its chunk's row but for the location; None for a session record."""

    session_id: int
    number: int
    record: Record
    chunk: ChunkItem | None


@dataclass(slots=True)
class Plan:
    """Everything that one commit will hold."""

    state: State
    pages: list[PlannedPage] = field(default_factory=list)
    log: list[PlannedLog] = field(default_factory=list)
    sessions: dict[int, SessionItem] = field(default_factory=dict)
    sources: dict[tuple[int, int], SourceItem] = field(default_factory=dict)
    source_numbers: dict[tuple[int, str, str], int] = field(default_factory=dict)
    tails: dict[int, bytes] = field(default_factory=dict)
    new_names: dict[str, int] = field(default_factory=dict)

    def put(self, changes: Changes, page_places: Sequence[Location], log_places: Sequence[Location]) -> None:
        """Put all rows. The state is not among them: the caller knows the last segment's number."""
        for page, place in zip(self.pages, page_places, strict=True):
            changes.put_page(page.session_id, page.page, PageItem(place, page.session_id))
        for entry, place in zip(self.log, log_places, strict=True):
            if entry.chunk is not None:
                changes.put_chunk(entry.session_id, entry.number, entry.chunk._replace(location=place))
        for (session_id, number), source in self.sources.items():
            changes.put_source(session_id, number, source)
        for session_id, tail in self.tails.items():
            changes.put_tail(session_id, tail)
        for session_id, session in self.sessions.items():
            changes.put_session(session_id, session)
        for name, session_id in self.new_names.items():
            changes.put_name(name, session_id)


def plan_session(snapshot: Snapshot, name: str, now_ms: int) -> Plan:
    """A plan that creates a session; its id is the only one in `plan.sessions`. Raises InputError or SessionExists."""
    _check_name(name)
    if snapshot.session_id(name) is not None:
        raise SessionExists(f"session {name!r} exists already: choose another name, or append to it")
    state = snapshot.state()
    session_id = state.next_session
    payload = json.dumps({"event": "create", "name": name, "created_ms": now_ms}).encode()
    record = pack_record(RecordType.SESSION, RecordFlags.ENDS_COMMIT, session_id, 0, state.next_sequence, payload)
    plan = Plan(state._replace(next_session=session_id + 1, next_sequence=state.next_sequence + 1))
    plan.log.append(PlannedLog(session_id, 0, record, None))
    plan.new_names[name] = session_id
    plan.tails[session_id] = b""
    plan.sessions[session_id] = SessionItem(
        n_tokens=0,
        n_sealed_tokens=0,
        n_bytes=0,
        n_sentences=0,
        created_ms=now_ms,
        updated_ms=now_ms,
        n_turns=0,
        n_chunks=0,
        n_sources=0,
        n_events=1,
        event_bytes=record_bytes(len(payload)),
        tail_bytes=0,
        tail_checksum=xxh3_64_intdigest(b""),
        name=name,
    )
    return plan


def _check_name(name: str) -> None:
    try:
        n_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise InputError("session name", repr(name), "text is allowed") from error
    if not 0 < n_bytes <= NAME_BYTES or not name.isprintable():
        raise InputError("session name", repr(name), f"1 to {NAME_BYTES} bytes of printable text are allowed")


def plan_appends(snapshot: Snapshot, appends: Sequence[Append], page_tokens: int, now_ms: int) -> Plan:
    """A plan of all appends, each seeing those before it. Raises InputError, naming the field, or SessionNotFound."""
    plan = Plan(snapshot.state())
    for number, append in enumerate(appends):
        session = plan.sessions.get(append.session_id) or snapshot.session(append.session_id)
        if session is None:
            raise SessionNotFound(f"no session {append.session_id}: create it first")
        _check_append(append, session, page_tokens)
        flags = RecordFlags.ENDS_COMMIT if number == len(appends) - 1 else RecordFlags.NONE
        _plan_append(plan, snapshot, append, session, flags, page_tokens, now_ms)
    return plan


def _plan_append(
    plan: Plan,
    snapshot: Snapshot,
    append: Append,
    session: SessionItem,
    flags: RecordFlags,
    page_tokens: int,
    now_ms: int,
) -> None:
    now_ms = max(now_ms, session.updated_ms)  # the clock may have gone backwards
    state = plan.state
    place = ChunkPlace(append.first_token, session.n_bytes, state.next_sentence, now_ms)
    packed = pack_chunk(append, place)
    session_id, sequence = append.session_id, state.next_sequence
    first_page = session.n_sealed_tokens // page_tokens
    for page, payload in enumerate(append.pages, first_page):
        record = pack_record(RecordType.PAGE, RecordFlags.NONE, session_id, page, sequence, payload)
        plan.pages.append(PlannedPage(session_id, page, record))
    source, is_new = _plan_source(plan, snapshot, append, session)
    record = pack_record(RecordType.CHUNK, flags, session_id, session.n_chunks, sequence, packed.payload)
    chunk = _chunk_item(append, place, packed, source)
    plan.log.append(PlannedLog(session_id, session.n_chunks, record, chunk))
    plan.tails[session_id] = append.tail
    plan.sessions[session_id] = session._replace(
        n_tokens=session.n_tokens + len(append.token_ids),
        n_sealed_tokens=session.n_sealed_tokens + page_tokens * len(append.pages),
        n_bytes=session.n_bytes + len(append.text),
        n_sentences=session.n_sentences + len(append.sentences),
        updated_ms=now_ms,
        n_turns=session.n_turns + append.ends_turn,
        n_chunks=session.n_chunks + 1,
        n_sources=session.n_sources + is_new,
        tail_bytes=len(append.tail),
        tail_checksum=xxh3_64_intdigest(append.tail),
    )
    plan.state = state._replace(next_sequence=sequence + 1, next_sentence=state.next_sentence + len(append.sentences))


def _plan_source(plan: Plan, snapshot: Snapshot, append: Append, session: SessionItem) -> tuple[int, bool]:
    """Count the append in its source. The source's number, and whether the session did not know it."""
    session_id = append.session_id
    identity = (session_id, append.source, append.source_digest)
    number = plan.source_numbers.get(identity)
    if number is None:
        number = snapshot.source_number(*identity)
    is_new = number is None
    if number is None:
        number = session.n_sources
        source = SourceItem(0, 0, 0, False, append.source, append.source_digest)
    else:
        source = plan.sources.get((session_id, number)) or snapshot.source(session_id, number)
    plan.source_numbers[identity] = number
    plan.sources[session_id, number] = source._replace(
        n_tokens=source.n_tokens + len(append.token_ids),
        n_bytes=source.n_bytes + len(append.text),
        n_sentences=source.n_sentences + len(append.sentences),
        complete=append.end_of_source,
    )
    return number, is_new


def _chunk_item(append: Append, place: ChunkPlace, packed: PackedChunk, source: int) -> ChunkItem:
    return ChunkItem(
        location=Location(0, 0, 0),
        owner=append.session_id,
        source=source,
        first_token=place.first_token,
        first_byte=place.first_byte,
        first_sentence=place.first_sentence,
        n_tokens=len(append.token_ids),
        n_bytes=len(append.text),
        n_sentences=len(append.sentences),
        span_bytes=packed.span_bytes,
        token_id_bytes=packed.token_id_bytes,
        text_bytes=packed.text_bytes,
        role=role_number(append.role),
        flags=0,
    )


def _check_append(append: Append, session: SessionItem, page_tokens: int) -> None:
    """Raise InputError unless the append continues the session rightly."""
    if append.first_token != session.n_tokens:
        allowed = f"{session.n_tokens} is allowed, the number of tokens in the session"
        raise InputError("append.first_token", append.first_token, allowed)
    if append.role not in ROLES:
        raise InputError("append.role", repr(append.role), f"one of {ROLES} is allowed")
    ids = append.token_ids
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or (len(ids) and not 0 <= ids.min() <= ids.max() < 1 << 31):
        raise InputError("append.token_ids", f"{ids.dtype}{list(ids.shape)}", "a row of int32 from 0 on is allowed")
    n_full = (session.n_tokens + len(ids)) // page_tokens
    n_pages = n_full - session.n_sealed_tokens // page_tokens
    if len(append.pages) != n_pages:
        raise InputError("append.pages", f"{len(append.pages)} pages", f"{n_pages} became full with these tokens")
    for problem in _sentence_problems(append, session):
        raise InputError(
            "append.sentences", problem, "spans that tile the text, within the append's tokens, are allowed"
        )


def _sentence_problems(append: Append, session: SessionItem) -> Iterator[str]:
    """What is wrong with the sentences' spans."""
    byte_end = session.n_bytes + len(append.text)
    if not append.sentences:
        if append.text:
            yield f"none for {len(append.text)} bytes of text"
        return
    spans = np.array(append.sentences, dtype=np.int64)  # [sentences, 4]
    starts = np.concatenate(([session.n_bytes], spans[:-1, 1]))
    if (spans[:, 0] != starts).any() or (spans[:, 0] >= spans[:, 1]).any() or spans[-1, 1] != byte_end:
        yield f"spans that do not tile bytes {session.n_bytes} to {byte_end}"
    token_end = append.first_token + len(append.token_ids)
    in_order = (append.first_token <= spans[:, 2]) & (spans[:, 2] <= spans[:, 3]) & (spans[:, 3] <= token_end)
    if not in_order.all():
        yield f"token spans outside {append.first_token} to {token_end}"
