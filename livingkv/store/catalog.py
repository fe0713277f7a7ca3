"""Typed changes of the catalog (FORMAT.md, section 6), all of a commit or nothing.

Knows rows and transactions; refuses to know segments' bytes and what an append means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from xxhash import xxh3_64_intdigest

from livingkv.errors import RecordDamaged, StoreError
from livingkv.store import item_bytes
from livingkv.store.environment import acquire, release
from livingkv.store.items import (
    ChunkItem,
    Erasure,
    PageItem,
    SegmentItem,
    SessionItem,
    SourceItem,
    State,
    StoredRequest,
    Weight,
)
from livingkv.store.key_files import KeyPlace
from livingkv.store.records import Location
from livingkv.store.scrubbing import scrub
from livingkv.store.sealing import Kind, Place, Vault
from livingkv.store.snapshot import (
    CHUNKS,
    DATABASES,
    DROP_KEYS,
    ERASING,
    EVENTS,
    IDENTITY,
    LAST,
    LEAVING,
    META,
    NAMES,
    PAGES,
    REQUEST_AGES,
    REQUESTS,
    SCRUB,
    SEGMENTS,
    SENTENCES,
    SESSIONS,
    SOURCE_CHUNKS,
    SOURCE_KEYS,
    SOURCES,
    STATE,
    TAILS,
    WEIGHTS,
    Snapshot,
)

Answer = TypeVar("Answer")
_READ_ATTEMPTS = 5
_REQUESTS_LEAVING = 16
TAIL_PIECE_BYTES = 16364
"""With its check and LMDB's page header, a piece fills four LMDB pages."""
REQUESTS_KEPT, REQUESTS_KEPT_MS = 10_000, 86_400_000
"""How many stored requests are known, and how long."""


class Changes(Snapshot):
    """A write transaction: reads see what it has put."""

    def _put(self, database: bytes, key: bytes, body: bytes) -> None:
        self._transaction.put(key, item_bytes.seal(key, body), db=self._handles[database])

    def put_identity(self, identity: dict[str, Any]) -> None:
        """What the store is, once."""
        self._put(META, IDENTITY, json.dumps(identity, sort_keys=True).encode())

    def put_state(self, state: State) -> None:
        """The counters."""
        self._put(META, STATE, item_bytes.pack_state(state))

    def put_segment(self, number: int, item: SegmentItem) -> None:
        """A segment's committed length."""
        self._put(SEGMENTS, item_bytes.key_1(number), item_bytes.pack_segment(item))

    def put_session(self, session_id: int, item: SessionItem) -> None:
        """A session's counters."""
        self._put(SESSIONS, item_bytes.key_1(session_id), item_bytes.pack_session(item))

    def put_name(self, name: str, session_id: int) -> None:
        """The session of a name."""
        self._put(NAMES, name.encode(), item_bytes.pack_number(session_id))

    def remove_name(self, name: str) -> None:
        """Forget the session of a name."""
        self._remove(NAMES, name.encode())

    def remove_erasure(self, item: Erasure) -> None:
        """A record has been erased."""
        self._remove(ERASING, item_bytes.key_place(item.location))

    def remove_segment(self, number: int) -> None:
        """A segment's records have moved."""
        self._remove(SEGMENTS, item_bytes.key_1(number))

    def remove_weight(self, sentence_id: int) -> None:
        """A sentence has no weight any more."""
        self._remove(WEIGHTS, item_bytes.key_long(sentence_id))

    def remove_source_key(self, session_id: int, item: SourceItem) -> None:
        """A source is not found by its name and digest any more."""
        identity = self._sealed_source(session_id, item.name, item.digest)
        self._remove(SOURCE_KEYS, item_bytes.source_key(session_id, *identity))

    def put_scrub(self) -> None:
        """The catalog's file is to be scrubbed."""
        self._put(META, SCRUB, b"")

    def remove_scrub(self) -> None:
        """The catalog's file has been scrubbed."""
        self._remove(META, SCRUB)

    def add_leaving(self, sentence_ids: Iterable[int]) -> None:
        """The lines of these sentences, and damaged ones, are to leave the archive."""
        self._put(META, LEAVING, item_bytes.pack_longs({*sentence_ids, *(self.leaving_archive() or ())}))

    def remove_leaving(self) -> None:
        """They have left the archive."""
        self._remove(META, LEAVING)

    def put_dropped_keys(self, keys: Sequence[tuple[bytes, KeyPlace]]) -> None:
        """Keys that are to be destroyed, all that there are."""
        if keys:
            self._put(META, DROP_KEYS, b"".join(key_id + bytes([place]) for key_id, place in keys))
        else:
            self._remove(META, DROP_KEYS)

    def remove_session(self, session_id: int, name: str) -> None:
        """All rows of a session."""
        for _, chunk in list(self.chunks(session_id)):
            if chunk.n_sentences:
                self._remove(SENTENCES, item_bytes.key_long(chunk.first_sentence))
        self._remove(NAMES, name.encode())
        first, last = item_bytes.key_1(session_id), item_bytes.key_1(session_id) + b"\xff" * 20
        for database in (SESSIONS, SOURCES, SOURCE_KEYS, SOURCE_CHUNKS, CHUNKS, PAGES, TAILS, EVENTS):
            with self._transaction.cursor(db=self._handles[database]) as cursor:
                found = cursor.set_range(first)
                while found and bytes(cursor.key()) <= last:
                    found = cursor.delete()

    def _remove(self, database: bytes, key: bytes) -> None:
        self._transaction.delete(key, db=self._handles[database])

    def put_source(self, session_id: int, number: int, item: SourceItem) -> None:
        """A source and the key under which it is found; name and digest are sealed if the session is, whose row is
        there."""
        name, digest = self._sealed_source(session_id, item.name, item.digest)
        sealed = item._replace(name=name, digest=digest)
        self._put(SOURCES, item_bytes.key_2(session_id, number), item_bytes.pack_source(sealed))
        self._put(SOURCE_KEYS, item_bytes.source_key(session_id, name, digest), item_bytes.pack_number(number))

    def put_chunk(self, session_id: int, number: int, item: ChunkItem) -> None:
        """A chunk, and that it belongs to its source and holds its sentences."""
        self._put(CHUNKS, item_bytes.key_2(session_id, number), item_bytes.pack_chunk_item(item))
        self._put(SOURCE_CHUNKS, item_bytes.key_3(session_id, item.source, number), b"")
        if item.n_sentences:
            self._put(SENTENCES, item_bytes.key_long(item.first_sentence), item_bytes.pack_pair(session_id, number))

    def put_page(self, session_id: int, page: int, item: PageItem) -> None:
        """Where a page stands."""
        self._put(PAGES, item_bytes.key_2(session_id, page), item_bytes.pack_page(item))

    def put_event(self, session_id: int, number: int, place: Location) -> None:
        """Where a session record stands."""
        self._put(EVENTS, item_bytes.key_2(session_id, number), item_bytes.pack_place(place))

    def put_erasure(self, item: Erasure) -> None:
        """A record that is to be erased."""
        self._put(ERASING, item_bytes.key_place(item.location), item_bytes.pack_erasure(item))

    def put_weight(self, sentence_id: int, item: Weight) -> None:
        """A sentence's weight."""
        self._put(WEIGHTS, item_bytes.key_long(sentence_id), item_bytes.pack_weight(item))

    def put_request(self, key: bytes, item: StoredRequest) -> None:
        """What a request of this key stored, whatever one of it stored before. A few others leave that are older than a
        day, or more than may be kept."""
        known = self.request(key)
        if known is not None:
            self._remove(REQUEST_AGES, item_bytes.key_age(known.stored_ms, key))
        self._put(REQUESTS, key, item_bytes.pack_request(item))
        self._put(REQUEST_AGES, item_bytes.key_age(item.stored_ms, key), b"")
        n_too_many = self._transaction.stat(db=self._handles[REQUESTS])["entries"] - REQUESTS_KEPT
        with self._transaction.cursor(db=self._handles[REQUEST_AGES]) as cursor:
            oldest = [bytes(age) for age in islice(cursor.iternext(values=False), _REQUESTS_LEAVING)]
        for number, age in enumerate(oldest):
            is_old = item_bytes.long_of(age[:8]) + REQUESTS_KEPT_MS < item.stored_ms
            if age[8:] != key and (number < n_too_many or is_old):
                self._remove(REQUEST_AGES, age)
                self._remove(REQUESTS, age[8:])

    def forget_what_requests_asked(self) -> None:
        """Keep no digest of what any request asked, and no row that cannot be read."""
        with self._transaction.cursor(db=self._handles[REQUESTS]) as cursor:
            keys = [bytes(key) for key in cursor.iternext(values=False)]
        with self._transaction.cursor(db=self._handles[REQUEST_AGES]) as cursor:
            ages = [bytes(age) for age in cursor.iternext(values=False)]
        damaged = set()
        for key in keys:
            try:
                item = self.request(key)
            except RecordDamaged:
                damaged.add(key)
                self._remove(REQUESTS, key)
                continue
            assert item is not None, "its key was just read"
            self._put(REQUESTS, key, item_bytes.pack_request(item._replace(digest=bytes(len(item.digest)))))
        for age in ages:
            if age[8:] in damaged:
                self._remove(REQUEST_AGES, age)

    def put_tail(self, session_id: int, tail: bytes) -> None:
        """A session's tail in place of the one before; pieces that stay the same are not written.

        If the session is encrypted, the tail is sealed, and the session's row, which is there, counts the sealed bytes.
        """
        sealed_by, session = self._sealed_by(session_id), self.session(session_id)
        if sealed_by is not None and session is not None and tail:
            vault, key_id = sealed_by
            tail = vault.seal(key_id, Place(Kind.TAIL, session_id, session.n_tokens), tail)
            checked = session._replace(tail_bytes=len(tail), tail_checksum=xxh3_64_intdigest(tail))
            self.put_session(session_id, checked)
        n_pieces = -(-len(tail) // TAIL_PIECE_BYTES)
        for piece in range(n_pieces):
            body = tail[piece * TAIL_PIECE_BYTES : (piece + 1) * TAIL_PIECE_BYTES]
            key = item_bytes.key_2(session_id, piece)
            if self._transaction.get(key, db=self._handles[TAILS]) != item_bytes.seal(key, body):
                self._put(TAILS, key, body)
        stale = self._scan(TAILS, item_bytes.key_2(session_id, n_pieces), item_bytes.key_2(session_id, LAST))
        for key in [key for key, _ in stale]:
            self._transaction.delete(key, db=self._handles[TAILS])


class Catalog:
    """The catalog of one store. Threads may share it; a forked child may not.

    vault: opens and seals the rows of encrypted sessions; None leaves them as they are.
    """

    def __init__(self, folder: Path, map_bytes: int, *, writable: bool, vault: Vault | None = None) -> None:
        self.vault = vault
        self._environment = acquire(folder, DATABASES, map_bytes, writable=writable)
        self._folder = folder
        self._is_open = True

    def close(self) -> None:
        """Give the environment back; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            release(self._environment)

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreError(f"{self._folder.parent} is closed: open the store again")

    def read(self) -> Snapshot:
        """The newest commit, as a context manager. Keep it short: an open snapshot keeps LMDB from reusing space."""
        self._require_open()
        return Snapshot(self._environment, self._environment.begin_read(), self.vault)

    def settled(self, read: Callable[[], Answer]) -> Answer:
        """What `read` returns; it runs again if it met a damaged record while a commit may have moved that record."""
        for _ in range(_READ_ATTEMPTS):
            before = self._environment.commit_number
            try:
                return read()
            except RecordDamaged:
                if self._environment.commit_number == before:
                    raise
        return read()

    def commit(self, apply: Callable[[Changes], None], before_commit: Callable[[], None]) -> None:
        """All that `apply` puts, or nothing; durable on return. `apply` may run twice and must only put."""

        def run(transaction: Any) -> None:
            apply(Changes(self._environment, transaction, self.vault))

        self._require_open()
        self._environment.write(run, before_commit)

    def scrub(self, wait_s: float) -> None:
        """Leave nothing of deleted rows in the file, if a commit asked for it. Raises StoreError."""
        with self.read() as snapshot:
            if not snapshot.needs_scrub():
                return
        scrub(self._environment, wait_s)
        self.commit(lambda changes: changes.remove_scrub(), before_commit=lambda: None)

    def reopen(self) -> None:
        """Open it again after a failed commit, so that it shows what is on disk."""
        self._environment.reopen(writable=True)
