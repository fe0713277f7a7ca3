"""Replaying log records into catalog rows (FORMAT.md, section 9): what the sessions were, from what happened to them.

Knows events and chunks in order; refuses to know files. Pages are chosen last, from the headers that were found.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from livingkv.store.appending import new_session
from livingkv.store.chunk_payload import Chunk, role_number
from livingkv.store.events import Created, Dropped, Event, Forgotten, Forked, Pinned, Renamed
from livingkv.store.items import NOWHERE, ChunkItem, PageItem, PageState, SessionFlags, SessionItem, SourceItem
from livingkv.store.records import Location, record_bytes

FORGOTTEN_SOURCE = "forgotten:"
"""Digest of a forgotten source, its number behind it."""


class LoggedChunk(NamedTuple):
    """A chunk's row, and what its record says besides."""

    item: ChunkItem
    source: tuple[str, str]
    end_of_source: bool
    ends_turn: bool
    time_ms: int
    n_forgotten: int


class LogEntry(NamedTuple):
    """A whole log record."""

    sequence: int
    session_id: int
    number: int
    location: Location
    content: Event | LoggedChunk
    key_id: bytes = b""


def logged_chunk(session_id: int, sequence: int, location: Location, payload: bytes) -> LoggedChunk:
    """A chunk record's payload as a row; its source's number is not known yet. Raises RecordDamaged."""
    chunk = Chunk(payload)
    row = ChunkItem(
        location=location,
        owner=session_id,
        source=0,
        first_token=chunk.place.first_token,
        first_byte=chunk.place.first_byte,
        first_sentence=chunk.place.first_sentence,
        n_tokens=chunk.n_tokens,
        n_bytes=chunk.n_bytes,
        n_sentences=chunk.n_sentences,
        span_bytes=chunk.span_bytes,
        token_id_bytes=chunk.token_id_bytes,
        text_bytes=chunk.text_bytes,
        role=role_number(chunk.role),
        flags=0,
        sequence=sequence,
    )
    identity = (chunk.source, chunk.source_digest)
    return LoggedChunk(row, identity, chunk.end_of_source, chunk.ends_turn, chunk.place.time_ms, len(chunk.forgotten))


@dataclass
class Replayed:
    """One session on its way through its history."""

    session_id: int
    name: str
    created_ms: int
    text_only: bool
    family: int
    pinned: bool = False
    event_bytes: int = 0
    events: dict[int, Location] = field(default_factory=dict)
    logged: dict[int, LoggedChunk] = field(default_factory=dict)
    chunks: list[LoggedChunk] = field(default_factory=list)
    source_numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    dropped: dict[int, tuple[int, PageState]] = field(default_factory=dict)  # page: sequence of the event, state
    shared: dict[int, tuple[int, PageState]] = field(default_factory=dict)  # page: owner, state
    forked_at: int = 0
    related: set[int] = field(default_factory=set)
    key_id: bytes = b""

    def finish(self) -> list[int]:
        """Put the chunks in order and number their sources; the chunks that are missing, which become empty rows.

        Called when all records were seen: a chunk that was written anew may come after those behind it.
        """
        lost = [number for number in range(max(self.logged, default=-1) + 1) if number not in self.logged]
        numbers = sorted(self.logged)
        for number in range(max(numbers, default=-1) + 1):
            following = self.logged[numbers[bisect_left(numbers, number)]]
            chunk = self._lost_chunk(following) if number in lost else following
            self.chunks.append(chunk._replace(item=chunk.item._replace(source=self._source(chunk.source))))
        return lost

    def _lost_chunk(self, following: LoggedChunk) -> LoggedChunk:
        """A row for a record that is gone: it spans what lies between its neighbours."""
        token, byte = self.ends
        item = following.item._replace(
            location=NOWHERE,
            first_token=token,
            first_byte=byte,
            n_tokens=following.item.first_token - token,
            n_bytes=following.item.first_byte - byte,
            n_sentences=0,
            span_bytes=0,
            token_id_bytes=0,
            text_bytes=0,
        )
        return LoggedChunk(item, ("", "lost"), False, False, following.time_ms, 0)

    def _source(self, identity: tuple[str, str]) -> int:
        if identity not in self.source_numbers:
            self.source_numbers[identity] = len(self.source_numbers)
        return self.source_numbers[identity]

    @property
    def ends(self) -> tuple[int, int]:
        """Tokens and text bytes so far."""
        if not self.chunks:
            return 0, 0
        last = self.chunks[-1].item
        return last.first_token + last.n_tokens, last.first_byte + last.n_bytes

    def session_item(self, page_tokens: int) -> SessionItem:
        """The session's row, without a tail."""
        n_tokens, n_bytes = self.ends
        base = new_session(self.session_id, self.name, self.created_ms, 0, text_only=self.text_only)
        flags = base.flags | (SessionFlags.PINNED if self.pinned else SessionFlags.NONE)
        return base._replace(
            n_tokens=n_tokens,
            n_sealed_tokens=n_tokens // page_tokens * page_tokens,
            n_bytes=n_bytes,
            n_sentences=sum(chunk.item.n_sentences for chunk in self.chunks),
            updated_ms=max([self.created_ms, *(chunk.time_ms for chunk in self.chunks)]),
            n_turns=sum(chunk.ends_turn for chunk in self.chunks),
            n_chunks=len(self.chunks),
            n_sources=len(self.source_numbers),
            n_events=max(self.events, default=-1) + 1,
            event_bytes=self.event_bytes,
            tail_checksum=xxh3_64_intdigest(b""),
            flags=flags | (SessionFlags.NEEDS_TAIL if n_tokens % page_tokens else SessionFlags.NONE),
            family=self.family,
            n_forgotten=sum(chunk.n_forgotten for chunk in self.chunks),
            key_id=self.key_id,
        )

    def source_items(self) -> list[SourceItem]:
        """The session's sources by number."""
        found = []
        for (name, digest), number in self.source_numbers.items():
            own = [chunk for chunk in self.chunks if chunk.item.source == number]
            rows = [chunk.item for chunk in own]
            item = SourceItem(
                n_tokens=sum(row.n_tokens for row in rows),
                n_bytes=sum(row.n_bytes for row in rows),
                n_sentences=sum(row.n_sentences for row in rows),
                complete=bool(own) and own[-1].end_of_source,
                name=name,
                digest=digest,
            )
            found.append(item)
        return found


PageRecords = dict[tuple[int, int], list[tuple[int, Location]]]
"""Sequence and place of each page record, by session and page, oldest first."""


class Replay:
    """All sessions, entry by entry. `problems`: what history lacks."""

    def __init__(self, entries: Sequence[LogEntry]) -> None:
        self.sessions: dict[int, Replayed] = {}
        self.problems: list[str] = []
        self.next_sentence = 0
        self._chunks: dict[tuple[int, int, int], LoggedChunk] = {}  # owner, number, sequence
        gone = {entry.session_id for entry in entries if isinstance(entry.content, Forgotten)}
        for entry in entries:
            if isinstance(entry.content, LoggedChunk):
                self._chunk(entry, entry.content)
            elif entry.session_id not in gone:
                self._event(entry, entry.content)
        for session_id in gone:
            self.sessions.pop(session_id, None)
        self._find_families()
        for session in self.sessions.values():
            self.problems += (f"session {session.name!r}: chunk {number} is lost" for number in session.finish())

    def _chunk(self, entry: LogEntry, chunk: LoggedChunk) -> None:
        self._chunks[entry.session_id, entry.number, entry.sequence] = chunk
        self.next_sentence = max(self.next_sentence, chunk.item.first_sentence + chunk.item.n_sentences)
        session = self.sessions.get(entry.session_id)
        if session is not None:  # else forgotten, but a fork may share the record
            session.logged[entry.number] = chunk

    def _event(self, entry: LogEntry, event: Event) -> None:
        if isinstance(event, Created):
            self.sessions[entry.session_id] = Replayed(
                entry.session_id, event.name, event.created_ms, event.text_only, entry.session_id
            )
        elif isinstance(event, Forked):
            self._fork(entry, event)
        session = self.sessions.get(entry.session_id)
        if session is None:
            self.problems.append(f"session {entry.session_id}: its first record is lost")
            return
        session.events[entry.number] = entry.location
        session.key_id = session.key_id or entry.key_id
        session.event_bytes += record_bytes(entry.location.length)
        if isinstance(event, Renamed):
            session.name = event.name
        elif isinstance(event, Pinned):
            session.pinned = event.pinned
        elif isinstance(event, Dropped):
            for lo, hi in event.pages:
                session.dropped |= dict.fromkeys(range(lo, hi), (entry.sequence, PageState(event.state)))

    def _find_families(self) -> None:
        """Sessions that share records, also through one that is gone, are one family: named by its lowest id."""
        parents: dict[int, int] = {}

        def root(session_id: int) -> int:
            while parents.get(session_id, session_id) != session_id:
                session_id = parents[session_id]
            return session_id

        for session in self.sessions.values():
            for other in session.related:
                low, high = sorted((root(session.session_id), root(other)))
                parents[high] = low
        for session in self.sessions.values():
            session.family = root(session.session_id)

    def _fork(self, entry: LogEntry, event: Forked) -> None:
        fork = Replayed(entry.session_id, event.name, event.created_ms, event.text_only, entry.session_id)
        fork.related = {event.of, *(chunk[0] for chunk in event.chunks), *(run[2] for run in event.pages)}
        fork.forked_at = entry.sequence
        for number, (owner, sequence, first_sentence) in enumerate(event.chunks):
            chunk = self._chunks.get((owner, number, sequence))
            if chunk is not None:  # else it was written anew when the fork forgot a sentence, or is lost
                fork.logged[number] = chunk._replace(item=chunk.item._replace(first_sentence=first_sentence))
                self.next_sentence = max(self.next_sentence, first_sentence + chunk.item.n_sentences)
        for lo, hi, owner, state in event.pages:
            fork.shared |= dict.fromkeys(range(lo, hi), (owner, PageState(state)))
        self.sessions[entry.session_id] = fork

    def pages(self, session: Replayed, n_pages: int, records: PageRecords) -> list[PageItem]:
        """Where a session's pages stand, from the page records that count."""
        return [self._page(session, page, records) for page in range(n_pages)]

    def _page(self, session: Replayed, page: int, records: PageRecords) -> PageItem:
        dropped_at, state = session.dropped.get(page, (-1, PageState.PRESENT))
        own = [place for sequence, place in records.get((session.session_id, page), ()) if sequence > dropped_at]
        if own:
            return PageItem(own[-1], session.session_id)
        if state is not PageState.PRESENT:
            return PageItem(NOWHERE, session.session_id, state)
        owner, state = session.shared.get(page, (session.session_id, PageState.PRESENT))
        if state is not PageState.PRESENT:
            return PageItem(NOWHERE, session.session_id, state)
        shared = records.get((owner, page), []) if owner != session.session_id else []
        before = [place for sequence, place in shared if sequence < session.forked_at]
        for place in before[-1:] or [place for _, place in shared[-1:]]:
            return PageItem(place, owner)
        if session.text_only:
            return PageItem(NOWHERE, session.session_id, PageState.DROPPED)
        self.problems.append(f"session {session.name!r}: page {page} is lost")
        return PageItem(NOWHERE, session.session_id, PageState.QUARANTINED)


def by_page(found: Sequence[tuple[int, int, int, Location]]) -> PageRecords:
    """Page records (session, page, sequence, place) ordered for `Replay.pages`."""
    records: PageRecords = defaultdict(list)
    for session_id, page, sequence, place in sorted(found):
        records[session_id, page].append((sequence, place))
    return records
