"""Replaying log records into catalog rows (FORMAT.md, section 9): what the sessions were, from what happened to them.

Knows events and chunks in order; refuses to know files. Pages are chosen last, from the headers that were found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from livingkv.store.events import Created, Dropped, Event, Forgotten, Forked, Pinned, Renamed
from livingkv.store.items import NOWHERE, PageItem, PageState
from livingkv.store.records import Location, record_bytes
from livingkv.store.replayed_session import LoggedChunk, Replayed


class LogEntry(NamedTuple):
    """A whole log record."""

    sequence: int
    session_id: int
    number: int
    location: Location
    content: Event | LoggedChunk
    key_id: bytes = b""


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
