"""What one commit will hold: records to write and rows to put.

Knows how a plan becomes changes of the catalog; refuses to know why. Changes nothing by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from livingkv.store.catalog import Changes
from livingkv.store.events import Event, pack_event
from livingkv.store.items import (
    NOWHERE,
    ChunkItem,
    Erasure,
    PageItem,
    PageState,
    SessionItem,
    SourceItem,
    State,
    StoredRequest,
)
from livingkv.store.key_files import KeyPlace
from livingkv.store.records import Location, Record, RecordFlags, RecordType, pack_record, record_bytes
from livingkv.store.rows import IdempotencyKey


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
    pages_without_kv: list[tuple[int, int]] = field(default_factory=list)
    log: list[PlannedLog] = field(default_factory=list)
    sessions: dict[int, SessionItem] = field(default_factory=dict)
    sources: dict[tuple[int, int], SourceItem] = field(default_factory=dict)
    source_numbers: dict[tuple[int, str, str], int] = field(default_factory=dict)
    tails: dict[int, bytes] = field(default_factory=dict)
    new_names: dict[str, int] = field(default_factory=dict)
    old_names: list[str] = field(default_factory=list)
    page_rows: dict[tuple[int, int], PageItem] = field(default_factory=dict)
    chunk_rows: dict[tuple[int, int], ChunkItem] = field(default_factory=dict)
    erasures: list[Erasure] = field(default_factory=list)
    removed_weights: list[int] = field(default_factory=list)
    old_sources: list[tuple[int, SourceItem]] = field(default_factory=list)
    gone: list[tuple[int, str]] = field(default_factory=list)
    scrubs: bool = False
    leaving_archive: list[int] | None = None
    dropped_keys: list[tuple[bytes, KeyPlace]] = field(default_factory=list)
    request: tuple[bytes, StoredRequest] | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing would be changed."""
        changes = (self.pages, self.log, self.sessions, self.tails, self.gone)
        return not any(changes) and self.leaving_archive is None

    def key_ids(self) -> dict[int, bytes]:
        """The keys of the encrypted sessions among those that change."""
        return {session_id: item.key_id for session_id, item in self.sessions.items() if item.key_id}

    def note_request(self, once: IdempotencyKey, sentence_ids: range = range(0)) -> None:
        """The commit is what a request with this key stored."""
        now_ms = int(time.time() * 1000)
        self.request = once.key, StoredRequest(once.digest, now_ms, sentence_ids.start, len(sentence_ids))

    def records(self) -> list[Record]:
        """All records to write."""
        return [page.record for page in self.pages] + [entry.record for entry in self.log]

    def end_commit(self) -> None:
        """Mark the last log record as the end of the commit, unless it is."""
        entry = self.log[-1]
        record_type = RecordType.SESSION if entry.chunk is None else RecordType.CHUNK
        place = (entry.session_id, entry.number, self.state.next_sequence - 1)
        record = pack_record(record_type, RecordFlags.ENDS_COMMIT, *place, entry.record[1])
        self.log[-1] = entry._replace(record=record)

    def put(self, changes: Changes, page_places: Sequence[Location], log_places: Sequence[Location]) -> None:
        """Put all rows. The state is not among them: the caller knows the last segment's number.

        Sessions come first: their keys seal what follows.
        """
        for session_id, session in self.sessions.items():
            changes.put_session(session_id, session)
        for page, place in zip(self.pages, page_places, strict=True):
            changes.put_page(page.session_id, page.page, PageItem(place, page.session_id))
        for session_id, number in self.pages_without_kv:
            changes.put_page(session_id, number, PageItem(NOWHERE, session_id, PageState.DROPPED))
        for (session_id, number), item in self.page_rows.items():
            changes.put_page(session_id, number, item)
        for (session_id, number), row in self.chunk_rows.items():
            changes.put_chunk(session_id, number, row)
        for entry, place in zip(self.log, log_places, strict=True):
            if entry.chunk is None:
                changes.put_event(entry.session_id, entry.number, place)
            else:
                changes.put_chunk(entry.session_id, entry.number, entry.chunk._replace(location=place))
        for session_id, old in self.old_sources:
            changes.remove_source_key(session_id, old)
        for (session_id, number), source in self.sources.items():
            changes.put_source(session_id, number, source)
        for session_id, tail in self.tails.items():
            changes.put_tail(session_id, tail)
        for erasure in self.erasures:
            changes.put_erasure(erasure)
        if self.scrubs:
            changes.put_scrub()
        if self.leaving_archive is not None:
            changes.add_leaving(self.leaving_archive)
        if self.dropped_keys:
            changes.put_dropped_keys([*changes.dropped_keys(), *self.dropped_keys])
        for sentence_id in self.removed_weights:
            changes.remove_weight(sentence_id)
        for session_id, name in self.gone:
            changes.remove_session(session_id, name)
        for name in self.old_names:
            changes.remove_name(name)
        for name, session_id in self.new_names.items():
            changes.put_name(name, session_id)
        if self.request is not None:
            changes.put_request(*self.request)

    def add_event(
        self, session_id: int, session: SessionItem, event: Event, *, ends_commit: bool = True
    ) -> SessionItem:
        """Log an event of a session, which takes the next sequence; the session's counters with it."""
        payload = pack_event(event)
        flags = RecordFlags.ENDS_COMMIT if ends_commit else RecordFlags.NONE
        sequence = self.state.next_sequence
        record = pack_record(RecordType.SESSION, flags, session_id, session.n_events, sequence, payload)
        self.log.append(PlannedLog(session_id, session.n_events, record, None))
        self.state = self.state._replace(next_sequence=sequence + 1)
        self.sessions[session_id] = session._replace(
            n_events=session.n_events + 1, event_bytes=session.event_bytes + record_bytes(len(payload))
        )
        return self.sessions[session_id]
