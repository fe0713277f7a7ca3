"""Typed reads of the catalog (FORMAT.md, section 6): what one commit says.

Knows which rows exist and how they are found; refuses to know segments' bytes and what an append means.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import lmdb

from livingkv.errors import RecordDamaged
from livingkv.json_fields import FieldError, Fields
from livingkv.store import item_bytes
from livingkv.store.environment import Environment
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
from livingkv.store.key_files import KEY_ID_BYTES, KeyPlace
from livingkv.store.records import Location
from livingkv.store.sealing import Vault

META, SEGMENTS, SESSIONS, NAMES = b"meta", b"segments", b"sessions", b"names"
SOURCES, SOURCE_KEYS, SOURCE_CHUNKS = b"sources", b"source_keys", b"source_chunks"
CHUNKS, SENTENCES, PAGES, TAILS = b"chunks", b"sentences", b"pages", b"tails"
EVENTS, ERASING, WEIGHTS = b"events", b"erasing", b"weights"
REQUESTS, REQUEST_AGES = b"requests", b"request_ages"
DATABASES = (
    *(META, SEGMENTS, SESSIONS, NAMES, SOURCES, SOURCE_KEYS, SOURCE_CHUNKS, CHUNKS, SENTENCES, PAGES, TAILS),
    *(EVENTS, ERASING, WEIGHTS, REQUESTS, REQUEST_AGES),
)

IDENTITY, STATE, SCRUB = b"identity", b"state", b"scrub"
LEAVING, DROP_KEYS = b"leaving", b"drop_keys"
LAST = 0xFFFFFFFF
"""The highest 4-byte number: the end of a scan."""


class SentencePlace(NamedTuple):
    """The chunk that holds a sentence, and the id of that chunk's first sentence."""

    first_sentence: int
    session_id: int
    chunk: int


class Snapshot:
    """What one commit says; a context manager that ends its transaction. Damaged rows raise RecordDamaged.

    Names of an encrypted session's sources are opened where its key is there; else they stay sealed.
    """

    def __init__(self, environment: Environment, transaction: Any, vault: Vault | None = None) -> None:
        self._environment = environment
        self._vault = vault
        self._handles = environment.handles
        self._transaction = transaction

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._environment.end_read(self._transaction)
        if isinstance(error, lmdb.Error):
            folder = self._environment.folder
            raise RecordDamaged(
                f"the catalog {folder} cannot be read ({error}): `livingkv repair {folder.parent}` rebuilds it "
                "from the segments"
            ) from error

    def _get(self, database: bytes, key: bytes) -> bytes | None:
        if database not in self._handles:  # an earlier livingkv made the catalog, and no writer has opened it since
            return None
        value = self._transaction.get(key, db=self._handles[database])
        return None if value is None else item_bytes.unseal(key, value, database.decode())

    def _scan(self, database: bytes, first: bytes, last: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and bodies from `first` on, to `last` included."""
        if database not in self._handles:
            return
        with self._transaction.cursor(db=self._handles[database]) as cursor:
            if cursor.set_range(first):
                for key, value in cursor:
                    if last is not None and key > last:
                        return
                    yield key, item_bytes.unseal(key, value, database.decode())

    def identity(self) -> dict[str, Any] | None:
        """The manifest's copy, or None if the making of the store was broken off."""
        body = self._get(META, IDENTITY)
        if body is None:
            return None
        try:
            Fields.read(body)
        except FieldError as error:
            raise RecordDamaged(f"catalog: the store's identity: {error}") from error
        return dict(json.loads(body))

    def state(self) -> State:
        """The store's counters."""
        body = self._get(META, STATE)
        if body is None:
            raise RecordDamaged("catalog: the state is missing")
        return item_bytes.unpack_state(body)

    def leaving_archive(self) -> frozenset[int] | None:
        """Sentences whose lines are to leave the archive, None if none and no damaged line is."""
        body = self._get(META, LEAVING)
        return None if body is None else item_bytes.unpack_longs(body)

    def needs_scrub(self) -> bool:
        """True if deleted rows may still be in the file and must not."""
        return self._get(META, SCRUB) is not None

    def dropped_keys(self) -> list[tuple[bytes, KeyPlace]]:
        """Keys that are to be destroyed."""
        body, step = self._get(META, DROP_KEYS) or b"", KEY_ID_BYTES + 1
        rows = [body[at : at + step] for at in range(0, len(body), step)]
        return [(row[:KEY_ID_BYTES], KeyPlace(row[KEY_ID_BYTES])) for row in rows]

    def _sealed_by(self, session_id: int) -> tuple[Vault, bytes] | None:
        """What seals a session's content, or None for one in the clear."""
        item = self.session(session_id)
        if self._vault is None or item is None or not item.key_id:
            return None
        return self._vault, item.key_id

    def _sealed_source(self, session_id: int, name: str, digest: str) -> tuple[str, str]:
        """Name and digest as they stand in rows. Raises KeyMissing."""
        sealed_by = self._sealed_by(session_id)
        if sealed_by is None:
            return name, digest
        vault, key_id = sealed_by
        session = self.session(session_id)
        vault.require(key_id, f"session {session.name!r}" if session else f"session {session_id}")
        return "", vault.seal_name(key_id, session_id, name, digest)

    def _opened_source(self, session_id: int, item: SourceItem) -> SourceItem:
        sealed_by = self._sealed_by(session_id)
        if sealed_by is None or not sealed_by[0].can_open(sealed_by[1]):
            return item
        vault, key_id = sealed_by
        name, digest = vault.open_name(key_id, session_id, item.digest)
        return item._replace(name=name, digest=digest)

    def segments(self) -> dict[int, SegmentItem]:
        """All segments by number."""
        return {
            item_bytes.numbers_of(key)[0]: item_bytes.unpack_segment(body) for key, body in self._scan(SEGMENTS, b"")
        }

    def session(self, session_id: int) -> SessionItem | None:
        """A session's counters."""
        body = self._get(SESSIONS, item_bytes.key_1(session_id))
        return None if body is None else item_bytes.unpack_session(body)

    def session_bodies(self, folder: str | None) -> Iterator[tuple[int, bytes]]:
        """All sessions, or those of one folder, by id, as their rows are: equal bytes are an equal row."""
        if folder is None:
            for key, body in self._scan(SESSIONS, item_bytes.key_1(0)):
                yield item_bytes.numbers_of(key)[0], body
            return
        for session_id in sorted(self.session_ids_in(folder)):
            found = self._get(SESSIONS, item_bytes.key_1(session_id))
            if found is not None:
                yield session_id, found

    def session_id(self, name: str) -> int | None:
        """The session of that name."""
        body = self._get(NAMES, name.encode("utf-8", "surrogatepass")) if name else None
        return None if body is None else item_bytes.unpack_number(body)

    def session_ids_in(self, folder: str) -> Iterator[int]:
        """The sessions of one folder: a name's folder is what stands before its last slash, empty if it has none."""
        first = f"{folder}/".encode() if folder else b""
        for key, body in self._scan(NAMES, first, first[:-1] + b"/\xff" if folder else None):
            if b"/" not in key[len(first) :]:
                yield item_bytes.unpack_number(body)

    @property
    def n_sessions(self) -> int:
        """How many sessions there are; no row is read."""
        return int(self._transaction.stat(db=self._handles[SESSIONS])["entries"])

    def sessions(self, first: int = 0) -> Iterator[tuple[int, SessionItem]]:
        """All sessions from `first` on, by id."""
        for key, body in self._scan(SESSIONS, item_bytes.key_1(first)):
            yield item_bytes.numbers_of(key)[0], item_bytes.unpack_session(body)

    def source_number(self, session_id: int, name: str, digest: str) -> int | None:
        """The number of a source in its session. Another source under the same key is not taken for it."""
        body = self._get(SOURCE_KEYS, item_bytes.source_key(session_id, *self._sealed_source(session_id, name, digest)))
        if body is None:
            return None
        number = item_bytes.unpack_number(body)
        found = self.source(session_id, number)
        return number if (found.name, found.digest) == (name, digest) else None

    def source(self, session_id: int, number: int) -> SourceItem:
        """One source."""
        body = self._get(SOURCES, item_bytes.key_2(session_id, number))
        if body is None:
            raise RecordDamaged(f"catalog: source {number} of session {session_id} is missing")
        return self._opened_source(session_id, item_bytes.unpack_source(body))

    def sources(self, session_id: int, first: int = 0) -> Iterator[tuple[int, SourceItem]]:
        """A session's sources from number `first` on, oldest first."""
        for key, body in self._scan(SOURCES, item_bytes.key_2(session_id, first), item_bytes.key_2(session_id, LAST)):
            yield item_bytes.numbers_of(key)[1], self._opened_source(session_id, item_bytes.unpack_source(body))

    def source_chunks(self, session_id: int, source: int, first: int) -> Iterator[int]:
        """Numbers of a source's chunks from `first` on."""
        last = item_bytes.key_3(session_id, source, LAST)
        for key, _ in self._scan(SOURCE_CHUNKS, item_bytes.key_3(session_id, source, first), last):
            yield item_bytes.numbers_of(key)[2]

    def source_chunks_before(self, session_id: int, source: int, chunk: int) -> Iterator[int]:
        """Numbers of a source's chunks before `chunk`, newest first."""
        with self._transaction.cursor(db=self._handles[SOURCE_CHUNKS]) as cursor:
            if not cursor.set_key(item_bytes.key_3(session_id, source, chunk)):
                return
            while cursor.prev():
                numbers = item_bytes.numbers_of(cursor.key())
                if numbers[:2] != (session_id, source):
                    return
                yield numbers[2]

    def chunk(self, session_id: int, number: int) -> ChunkItem:
        """One chunk."""
        body = self._get(CHUNKS, item_bytes.key_2(session_id, number))
        if body is None:
            raise RecordDamaged(f"catalog: chunk {number} of session {session_id} is missing")
        return item_bytes.unpack_chunk_item(body)

    def chunks(self, session_id: int, first: int = 0) -> Iterator[tuple[int, ChunkItem]]:
        """A session's chunks from number `first` on."""
        for key, body in self._scan(CHUNKS, item_bytes.key_2(session_id, first), item_bytes.key_2(session_id, LAST)):
            yield item_bytes.numbers_of(key)[1], item_bytes.unpack_chunk_item(body)

    def chunks_from_token(self, session_id: int, token: int, n_chunks: int) -> Iterator[tuple[int, ChunkItem]]:
        """Chunks from the one that holds `token` on."""
        number = bisect_right(range(n_chunks), token, key=lambda i: self.chunk(session_id, i).first_token)
        return self.chunks(session_id, max(0, number - 1))

    def chunks_from_byte(self, session_id: int, byte: int, n_chunks: int) -> Iterator[tuple[int, ChunkItem]]:
        """Chunks from the one that holds text byte `byte` on."""
        number = bisect_right(range(n_chunks), byte, key=lambda i: self.chunk(session_id, i).first_byte)
        return self.chunks(session_id, max(0, number - 1))

    def sentence_place(self, sentence_id: int) -> SentencePlace | None:
        """The last chunk whose first sentence id is at most `sentence_id`; it may end before that sentence."""
        with self._transaction.cursor(db=self._handles[SENTENCES]) as cursor:
            key = item_bytes.key_long(sentence_id)
            found = cursor.set_range(key)
            if not (found and cursor.key() == key) and not (cursor.prev() if found else cursor.last()):
                return None
            key, value = cursor.item()
            return SentencePlace(
                item_bytes.long_of(key), *item_bytes.unpack_pair(item_bytes.unseal(key, value, "sentences"))
            )

    def sentence_places(self, first: int) -> Iterator[SentencePlace]:
        """Chunks with sentences in the order of ids, those whose first id is at least `first`."""
        for key, body in self._scan(SENTENCES, item_bytes.key_long(first)):
            yield SentencePlace(item_bytes.long_of(key), *item_bytes.unpack_pair(body))

    def page(self, session_id: int, page: int) -> PageItem | None:
        """Where a page stands."""
        body = self._get(PAGES, item_bytes.key_2(session_id, page))
        return None if body is None else item_bytes.unpack_page(body)

    def pages(self) -> Iterator[tuple[int, int, PageItem]]:
        """All pages: session, page number, place."""
        for key, body in self._scan(PAGES, b""):
            session_id, page = item_bytes.numbers_of(key)
            yield session_id, page, item_bytes.unpack_page(body)

    def pages_of(self, session_id: int, first: int = 0) -> Iterator[tuple[int, PageItem]]:
        """A session's pages from number `first` on."""
        for key, body in self._scan(PAGES, item_bytes.key_2(session_id, first), item_bytes.key_2(session_id, LAST)):
            yield item_bytes.numbers_of(key)[1], item_bytes.unpack_page(body)

    def events(self, session_id: int) -> Iterator[tuple[int, Location]]:
        """Where a session's session records stand, by event number."""
        for key, body in self._scan(EVENTS, item_bytes.key_2(session_id, 0), item_bytes.key_2(session_id, LAST)):
            yield item_bytes.numbers_of(key)[1], item_bytes.unpack_place(body)

    def erasures(self) -> Iterator[Erasure]:
        """Records that commits have given up and that are not erased yet."""
        for key, body in self._scan(ERASING, b""):
            yield item_bytes.unpack_erasure(key, body)

    def weight(self, sentence_id: int) -> Weight | None:
        """A sentence's weight, or None if it was never recalled."""
        body = self._get(WEIGHTS, item_bytes.key_long(sentence_id))
        return None if body is None else item_bytes.unpack_weight(body)

    def weights(self, first: int = 0) -> Iterator[tuple[int, Weight]]:
        """All weights from sentence `first` on."""
        for key, body in self._scan(WEIGHTS, item_bytes.key_long(first)):
            yield item_bytes.long_of(key), item_bytes.unpack_weight(body)

    def request(self, key: bytes) -> StoredRequest | None:
        """What a request of this key stored, or None if none did."""
        body = self._get(REQUESTS, key)
        return None if body is None else item_bytes.unpack_request(body)

    def tail(self, session_id: int) -> bytes:
        """A session's tail, sealed if the session is; its checksum is in the session."""
        bodies = self._scan(TAILS, item_bytes.key_2(session_id, 0), item_bytes.key_2(session_id, LAST))
        return b"".join(body for _, body in bodies)

    def names(self) -> Iterator[tuple[str, int]]:
        """All session names with their sessions."""
        for key, body in self._scan(NAMES, b""):
            yield key.decode("utf-8", "replace"), item_bytes.unpack_number(body)

    def damaged_entries(self) -> Iterator[str]:
        """One line for each row of any database that fails its check."""
        for database in self._handles:
            with self._transaction.cursor(db=self._handles[database]) as cursor:
                for key, value in cursor:
                    try:
                        item_bytes.unseal(key, value, database.decode())
                    except RecordDamaged as error:
                        yield str(error)
