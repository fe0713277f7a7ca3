"""The rows of the catalog as values: what is known of a session, a source, a chunk, a page, a segment, a sentence.

Knows the fields; refuses to know their bytes (`item_bytes.py`), LMDB and what the rows mean together.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import NamedTuple

from livingkv.store.records import Location, SegmentKind

NOWHERE = Location(0, 0, 0)
"""Where a record stands that is not kept."""


class State(NamedTuple):
    """The store's counters: the next number of each kind that will be given out."""

    next_session: int
    next_segment: int
    next_sequence: int
    next_sentence: int


class SessionFlags(IntFlag):
    """What is special about a session."""

    NONE = 0
    TEXT_ONLY = 1
    NEEDS_TAIL = 2
    PINNED = 4


class PageState(IntEnum):
    """Whether a page's bytes are there, and if not, why."""

    PRESENT = 0
    DROPPED = 1
    QUARANTINED = 2
    FORGOTTEN = 3


class SegmentItem(NamedTuple):
    """A segment as far as commits cover it."""

    kind: SegmentKind
    n_records: int
    committed: int


class SessionItem(NamedTuple):
    """A session's counters. `tail_checksum` covers its `tail_bytes`; `event_bytes` is what its session records take.

    `family` is the session from which it and its relatives were forked, itself if none; `n_forgotten` counts sentences.
    `key_id` is that of an encrypted session's key, which its relatives share, else empty.
    """

    n_tokens: int
    n_sealed_tokens: int
    n_bytes: int
    n_sentences: int
    created_ms: int
    updated_ms: int
    n_turns: int
    n_chunks: int
    n_sources: int
    n_events: int
    event_bytes: int
    tail_bytes: int
    tail_checksum: int
    name: str
    flags: SessionFlags = SessionFlags.NONE
    family: int = 0
    n_forgotten: int = 0
    key_id: bytes = b""


class SourceItem(NamedTuple):
    """A source's share of its session."""

    n_tokens: int
    n_bytes: int
    n_sentences: int
    complete: bool
    name: str
    digest: str


FORGOTTEN_SOURCE = "forgotten:"
"""Digest of a forgotten source, its number behind it."""


class ChunkItem(NamedTuple):
    """Where a chunk's record stands and what it covers. `owner` is the session id in the record's header."""

    location: Location
    owner: int
    source: int
    first_token: int
    first_byte: int
    first_sentence: int
    n_tokens: int
    n_bytes: int
    n_sentences: int
    span_bytes: int
    token_id_bytes: int
    text_bytes: int
    role: int
    flags: int
    sequence: int = 0


class PageItem(NamedTuple):
    """Where a page's record stands; nowhere unless it is present. `owner` is the session id in the record's header."""

    location: Location
    owner: int
    state: PageState = PageState.PRESENT


class Erasure(NamedTuple):
    """A record that no row needs any more. `overwrite`: its bytes must be gone from the file, not only its space."""

    location: Location
    overwrite: bool


class StoredRequest(NamedTuple):
    """What a request with a key stored: when, and the ids of its sentences. digest: of what it asked, 16 bytes."""

    digest: bytes
    stored_ms: int
    first_sentence: int
    n_sentences: int

    @property
    def sentence_ids(self) -> range:
        """Ids of the sentences that it stored."""
        return range(self.first_sentence, self.first_sentence + self.n_sentences)


class Weight(NamedTuple):
    """How warm a sentence was when it was last recalled, when that was, and how often it was recalled."""

    weight: float
    recalled_ms: int
    hits: int
