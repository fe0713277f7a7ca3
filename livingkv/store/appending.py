"""What an append means: checked against its session, then laid out as records and catalog rows.

Knows sessions, sources, chunks and pages; refuses to know files and transactions. Changes nothing:
a `Plan` is committed elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from xxhash import xxh3_64_intdigest

from livingkv.errors import InputError, SessionExists, SessionNotFound
from livingkv.store.chunk_payload import ROLES, ChunkPlace, PackedChunk, pack_chunk, role_number
from livingkv.store.events import Created, pack_event
from livingkv.store.items import ChunkItem, SessionFlags, SessionItem, SourceItem
from livingkv.store.plan import Plan, PlannedLog, PlannedPage
from livingkv.store.records import Location, RecordFlags, RecordType, pack_record, record_bytes
from livingkv.store.rows import Append
from livingkv.store.snapshot import Snapshot

NAME_BYTES = 255


def plan_session(snapshot: Snapshot, name: str, now_ms: int, *, text_only: bool = False) -> Plan:
    """A plan that creates a session; its id is the only one in `plan.sessions`. Raises InputError or SessionExists."""
    require_new_name(snapshot, name)
    state = snapshot.state()
    session_id = state.next_session
    payload = pack_event(Created(name, now_ms, text_only))
    record = pack_record(RecordType.SESSION, RecordFlags.ENDS_COMMIT, session_id, 0, state.next_sequence, payload)
    plan = Plan(state._replace(next_session=session_id + 1, next_sequence=state.next_sequence + 1))
    plan.log.append(PlannedLog(session_id, 0, record, None))
    plan.new_names[name] = session_id
    plan.tails[session_id] = b""
    plan.sessions[session_id] = new_session(session_id, name, now_ms, len(payload), text_only=text_only)
    return plan


def new_session(session_id: int, name: str, now_ms: int, event_bytes: int, *, text_only: bool) -> SessionItem:
    """The counters of an empty session; `event_bytes` is the length of its first record's payload."""
    return SessionItem(
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
        event_bytes=record_bytes(event_bytes),
        tail_bytes=0,
        tail_checksum=xxh3_64_intdigest(b""),
        name=name,
        flags=SessionFlags.TEXT_ONLY if text_only else SessionFlags.NONE,
        family=session_id,
        n_forgotten=0,
    )


def check_session_name(name: str) -> None:
    """Raise InputError unless `name` may be a session's: 1 to 255 bytes of printable text."""
    try:
        n_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise InputError("session name", repr(name), "text is allowed") from error
    if not 0 < n_bytes <= NAME_BYTES or not name.isprintable():
        raise InputError("session name", repr(name), f"1 to {NAME_BYTES} bytes of printable text are allowed")


def require_new_name(snapshot: Snapshot, name: str) -> None:
    """Raise InputError or SessionExists unless a session may get this name."""
    check_session_name(name)
    if snapshot.session_id(name) is not None:
        raise SessionExists(f"session {name!r} exists already: choose another name, or append to it")


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
    packed = pack_chunk(append, place, n_sealed_pages=_n_new_pages(append, session, page_tokens))
    session_id, sequence = append.session_id, state.next_sequence
    first_page = session.n_sealed_tokens // page_tokens
    for page, payload in enumerate(append.pages, first_page):
        record = pack_record(RecordType.PAGE, RecordFlags.NONE, session_id, page, sequence, payload)
        plan.pages.append(PlannedPage(session_id, page, record))
    n_sealed = (session.n_tokens + len(append.token_ids)) // page_tokens
    plan.pages_without_kv += ((session_id, page) for page in range(first_page + len(append.pages), n_sealed))
    source, is_new = _plan_source(plan, snapshot, append, session)
    record = pack_record(RecordType.CHUNK, flags, session_id, session.n_chunks, sequence, packed.payload)
    chunk = chunk_item(append, place, packed, source, sequence)
    plan.log.append(PlannedLog(session_id, session.n_chunks, record, chunk))
    plan.tails[session_id] = append.tail
    plan.sessions[session_id] = session._replace(
        n_tokens=session.n_tokens + len(append.token_ids),
        n_sealed_tokens=n_sealed * page_tokens,
        n_bytes=session.n_bytes + len(append.text),
        n_sentences=session.n_sentences + len(append.sentences),
        updated_ms=now_ms,
        n_turns=session.n_turns + append.ends_turn,
        n_chunks=session.n_chunks + 1,
        n_sources=session.n_sources + is_new,
        tail_bytes=len(append.tail),
        tail_checksum=xxh3_64_intdigest(append.tail),
        flags=_flags_after(append, session, n_sealed * page_tokens),
    )
    plan.state = state._replace(next_sequence=sequence + 1, next_sentence=state.next_sentence + len(append.sentences))


def _flags_after(append: Append, session: SessionItem, n_sealed_tokens: int) -> SessionFlags:
    """A text-only session that got no tail needs one before its tail can be attended."""
    has_open_page = session.n_tokens + len(append.token_ids) > n_sealed_tokens
    lacks_tail = session.flags & SessionFlags.TEXT_ONLY and has_open_page and not append.tail
    flags = session.flags & ~SessionFlags.NEEDS_TAIL
    return flags | SessionFlags.NEEDS_TAIL if lacks_tail else flags


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


def chunk_item(append: Append, place: ChunkPlace, packed: PackedChunk, source: int, sequence: int) -> ChunkItem:
    """The row of a chunk that has no place yet."""
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
        sequence=sequence,
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
    n_pages = _n_new_pages(append, session, page_tokens)
    without_kv = session.flags & SessionFlags.TEXT_ONLY and not append.pages
    if len(append.pages) != n_pages and not without_kv:
        raise InputError("append.pages", f"{len(append.pages)} pages", f"{n_pages} became full with these tokens")
    for problem in _sentence_problems(append, session):
        raise InputError(
            "append.sentences", problem, "spans that tile the text, within the append's tokens, are allowed"
        )


def _n_new_pages(append: Append, session: SessionItem, page_tokens: int) -> int:
    """How many pages become full with an append."""
    return (session.n_tokens + len(append.token_ids) - session.n_sealed_tokens) // page_tokens


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
