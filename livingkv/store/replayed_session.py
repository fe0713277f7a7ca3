"""One session on its way through its history: its chunks in order, its sources by number, the row that they add up to.

Knows what one session's records say; refuses to know which records belong to it (`replaying.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from livingkv.store.appending import new_session
from livingkv.store.chunk_payload import Chunk, role_number
from livingkv.store.items import NOWHERE, ChunkItem, PageState, SessionFlags, SessionItem, SourceItem
from livingkv.store.records import Location


class LoggedChunk(NamedTuple):
    """A chunk's row, and what its record says besides."""

    item: ChunkItem
    source: tuple[str, str]
    end_of_source: bool
    ends_turn: bool
    time_ms: int
    n_forgotten: int


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
