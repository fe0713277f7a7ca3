"""Reading a store: sessions, pages, tails, token ids, text.

Each call sees one commit, and holds no snapshot while it reads files.
Knows how catalog and segments answer together; refuses to know appending. Threads may share a `Reading`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from xxhash import xxh3_64_intdigest

from livingkv.errors import InputError, PageDamaged, PageDropped, RecordDamaged, SessionNotFound
from livingkv.store.catalog import Catalog
from livingkv.store.chunk_payload import Chunk, role_of
from livingkv.store.items import FORGOTTEN_SOURCE, ChunkItem, PageItem, PageState, SessionFlags, SessionItem, SourceItem
from livingkv.store.records import RecordType
from livingkv.store.rows import ChunkRow, Role, SessionRow, SourceRow, TokenIds
from livingkv.store.sealing import SEALED_NAME, Kind, Place, Vault
from livingkv.store.segment_reader import SegmentReader, Wanted
from livingkv.store.snapshot import Snapshot

_NAMED_SESSIONS = 5
Payload = TypeVar("Payload", bytes, memoryview)


def wanted_page(page: int, item: PageItem) -> Wanted:
    """The record of a page."""
    return Wanted(item.location, RecordType.PAGE, item.owner, page)


def wanted_chunk(number: int, item: ChunkItem) -> Wanted:
    """The record of a chunk."""
    return Wanted(item.location, RecordType.CHUNK, item.owner, number)


class Reading:
    """The reading half of a store."""

    def __init__(self, root: Path, catalog: Catalog, segments: SegmentReader, page_tokens: int, vault: Vault) -> None:
        self._root = root
        self.vault = vault
        self._key_ids: dict[int, bytes] = {}
        self._catalog = catalog
        self._segments = segments
        self._page_tokens = page_tokens
        self._encrypted: tuple[tuple[int, ...], int] = (), 0  # as far as sessions were looked at
        self._source_names: dict[int, tuple[int, int, dict[str, None]]] = {}  # session: sources read, forgotten, names

    def require_session(self, snapshot: Snapshot, session_id: int) -> SessionItem:
        """A session's counters. Raises SessionNotFound."""
        item = snapshot.session(session_id)
        if item is None:
            raise self._session_not_found(snapshot, session_id)
        return item

    def key_id(self, session_id: int) -> bytes:
        """The id of a session's key, empty if it is in the clear; a session keeps the one that it began with."""
        known = self._key_ids.get(session_id)
        if known is None:
            with self._catalog.read() as snapshot:
                item = snapshot.session(session_id)
            if item is None:
                return b""
            known = self._key_ids[session_id] = item.key_id
        return known

    def require_key(self, session_id: int, item: SessionItem) -> None:
        """Raise KeyMissing, naming the session, unless its content can be read and written."""
        if item.key_id:
            self.vault.require(item.key_id, f"session {item.name!r}")

    def opened(self, session_id: int, place: Place, payload: Payload) -> Payload | bytes:
        """What a record holds: the payload itself, or opened where the session is encrypted.

        Raises KeyMissing, or RecordDamaged where it does not open at this place.
        """
        key_id = self.key_id(session_id)
        if not key_id:
            return payload
        if not self.vault.can_open(key_id):
            with self._catalog.read() as snapshot:
                self.require_key(session_id, self.require_session(snapshot, session_id))
        return self.vault.open(key_id, place, payload)

    def opened_page(self, session_id: int, wanted: Wanted, payload: Payload) -> Payload | bytes:
        """The bytes of a page from its record's payload. Raises PageDamaged or KeyMissing."""
        try:
            return self.opened(session_id, Place(*wanted[1:]), payload)
        except RecordDamaged as error:
            place = wanted.location
            placed = RecordDamaged(f"segment {place.segment} offset {place.offset}: {error}", segment=place.segment)
            raise page_damaged(session_id, wanted.number, placed) from error

    def _session_not_found(self, snapshot: Snapshot, name_or_id: str | int) -> SessionNotFound:
        names = [item.name for _, item in zip(range(_NAMED_SESSIONS + 1), _items(snapshot), strict=False)]
        known = ", ".join(names[:_NAMED_SESSIONS]) + (", ..." if len(names) > _NAMED_SESSIONS else "")
        return SessionNotFound(f"no session {name_or_id!r} in {self._root}: it has {known or 'no sessions'}")

    def session(self, name_or_id: str | int) -> SessionRow:
        """See Store.session."""
        with self._catalog.read() as snapshot:
            session_id = snapshot.session_id(name_or_id) if isinstance(name_or_id, str) else name_or_id
            item = None if session_id is None else snapshot.session(session_id)
            if item is None or session_id is None:
                raise self._session_not_found(snapshot, name_or_id)
            return self._row(snapshot, session_id, item)

    def sessions(self, folder: str | None) -> list[SessionRow]:
        """See Store.sessions."""
        with self._catalog.read() as snapshot:
            if folder is None:
                return [self._row(snapshot, session_id, item) for session_id, item in snapshot.sessions()]
            ids = sorted(snapshot.session_ids_in(folder))
            return [self._row(snapshot, each, self.require_session(snapshot, each)) for each in ids]

    def _row(self, snapshot: Snapshot, session_id: int, item: SessionItem) -> SessionRow:
        n_read, n_forgotten, names = self._source_names.get(session_id, (0, 0, {}))
        if n_forgotten != item.n_forgotten:  # names may be gone
            n_read, names = 0, {}
        if n_read < item.n_sources:
            sources = snapshot.sources(session_id, n_read)
            new = {source.name: None for _, source in sources if not _is_forgotten(source)}
            names = names | new  # a new dict: other threads may be reading the old one
            self._source_names[session_id] = (item.n_sources, item.n_forgotten, names)
        return SessionRow(
            session_id=session_id,
            name=item.name,
            n_tokens=item.n_tokens,
            n_sealed_tokens=item.n_sealed_tokens,
            n_bytes=item.n_bytes,
            n_sentences=item.n_sentences - item.n_forgotten,
            n_turns=item.n_turns,
            created_s=item.created_ms / 1000,
            updated_s=item.updated_ms / 1000,
            sources=tuple(names),
            text_only=bool(item.flags & SessionFlags.TEXT_ONLY),
            needs_tail=bool(item.flags & SessionFlags.NEEDS_TAIL),
            pinned=bool(item.flags & SessionFlags.PINNED),
            encrypted=bool(item.key_id),
        )

    def encrypted_sessions(self) -> list[int]:
        """See Store.encrypted_sessions. A session stays what it began as, and ids are not given out again."""
        with self._catalog.read() as snapshot:
            known, first = self._encrypted
            new = [(session_id, bool(item.key_id)) for session_id, item in snapshot.sessions(first)]
            found = [*known, *(session_id for session_id, is_encrypted in new if is_encrypted)]
            found = [session_id for session_id in found if snapshot.session(session_id) is not None]
        self._encrypted = tuple(found), new[-1][0] + 1 if new else first
        return found

    def sources(self, session_id: int) -> list[SourceRow]:
        """See Store.sources."""
        with self._catalog.read() as snapshot:
            self.require_session(snapshot, session_id)
            sources = (item for _, item in snapshot.sources(session_id))
            return [_source_row(session_id, item) for item in sources if not _is_forgotten(item)]

    def source(self, session_id: int, name: str, digest: str) -> SourceRow | None:
        """See Store.source."""
        with self._catalog.read() as snapshot:
            self.require_session(snapshot, session_id)
            number = snapshot.source_number(session_id, name, digest)
            return None if number is None else _source_row(session_id, snapshot.source(session_id, number))

    def locate_pages(self, session_id: int, pages: Sequence[int]) -> list[Wanted]:
        """See Store.locate_pages."""
        with self._catalog.read() as snapshot:
            n_pages = self.require_session(snapshot, session_id).n_sealed_tokens // self._page_tokens
            places = {page: snapshot.page(session_id, page) for page in pages if 0 <= page < n_pages}
        wanted = []
        for page in pages:
            if not 0 <= page < n_pages:
                raise InputError("page", page, f"session {session_id} has {n_pages} pages, counted from 0")
            place = places[page]
            if place is None:
                message = f"page {page} of session {session_id} is not in the catalog: rebuild it from the text"
                raise PageDamaged(message, session_id=session_id, page=page)
            if place.state is not PageState.PRESENT:
                raise _page_dropped(session_id, page, place.state)
            wanted.append(wanted_page(page, place))
        return wanted

    def read_pages(self, session_id: int, pages: Sequence[int]) -> list[bytes]:
        """See Store.read_pages."""
        payloads: dict[int, bytes] = {}
        wanted = self.locate_pages(session_id, pages)
        for position, payload in self._segments.read_all(wanted):
            if isinstance(payload, RecordDamaged):
                raise page_damaged(session_id, pages[position], payload) from payload
            payloads[position] = self.opened_page(session_id, wanted[position], payload)
        return [payloads[position] for position in range(len(pages))]

    def read_tail(self, session_id: int) -> tuple[int, bytes]:
        """See Store.read_tail."""
        with self._catalog.read() as snapshot:
            item = self.require_session(snapshot, session_id)
            return item.n_sealed_tokens, self.tail_of(snapshot, session_id, item)

    def tail_of(self, snapshot: Snapshot, session_id: int, item: SessionItem) -> bytes:
        """A session's tail. Raises PageDamaged."""
        page = item.n_sealed_tokens // self._page_tokens
        if item.flags & SessionFlags.NEEDS_TAIL:
            message = f"the tail of session {session_id} is not stored: rebuild it from the text"
            raise PageDropped(message, session_id=session_id, page=page)
        try:
            tail = snapshot.tail(session_id)
        except RecordDamaged as error:
            raise page_damaged(session_id, page, error) from error
        if len(tail) != item.tail_bytes or xxh3_64_intdigest(tail) != item.tail_checksum:
            message = f"the tail of session {session_id} fails its checksum: rebuild it from the text"
            raise PageDamaged(message, session_id=session_id, page=page)
        if not item.key_id or not tail:
            return tail
        self.require_key(session_id, item)
        try:
            return self.vault.open(item.key_id, Place(Kind.TAIL, session_id, item.n_tokens), tail)
        except RecordDamaged as error:
            raise page_damaged(session_id, page, error) from error

    def read_chunk(self, session_id: int, number: int, item: ChunkItem) -> Chunk:
        """A chunk's payload. Raises RecordDamaged, naming the chunk."""
        try:
            wanted = wanted_chunk(number, item)
            return Chunk(self.opened(session_id, Place(*wanted[1:]), self._segments.read(wanted)))
        except RecordDamaged as error:
            segment, offset, _ = item.location
            message = f"chunk {number} of session {session_id} is damaged ({error}): its text must be ingested again"
            raise RecordDamaged(message, segment=segment, offset=offset) from error

    def token_ids(self, session_id: int, token_lo: int, token_hi: int) -> TokenIds:
        """See Store.token_ids."""
        with self._catalog.read() as snapshot:
            item = self.require_session(snapshot, session_id)
            _require_span("tokens", token_lo, token_hi, item.n_tokens)
            chunks = []
            for number, chunk in snapshot.chunks_from_token(session_id, token_lo, item.n_chunks):
                if chunk.first_token >= token_hi:
                    break
                chunks.append((number, chunk))
        parts = [np.empty(0, dtype=np.int32)]
        for number, chunk in chunks:
            ids = self.read_chunk(session_id, number, chunk).token_ids()
            parts.append(ids[max(0, token_lo - chunk.first_token) : max(0, token_hi - chunk.first_token)])
        return np.concatenate(parts)

    def role_at(self, session_id: int, token: int) -> Role:
        """See Store.role_at."""
        with self._catalog.read() as snapshot:
            item = self.require_session(snapshot, session_id)
            _require_span("tokens", token, token + 1, item.n_tokens)
            _, chunk = next(snapshot.chunks_from_token(session_id, token, item.n_chunks))
        return role_of(chunk.role)

    def chunks(self, session_id: int) -> list[ChunkRow]:
        """See Store.chunks."""
        with self._catalog.read() as snapshot:
            self.require_session(snapshot, session_id)
            sources = {
                number: "" if _is_forgotten(item) else item.name for number, item in snapshot.sources(session_id)
            }
            return [
                ChunkRow(
                    item.first_token,
                    item.first_token + item.n_tokens,
                    item.first_byte,
                    item.first_byte + item.n_bytes,
                    role_of(item.role),
                    sources[item.source],
                    item.n_sentences,
                )
                for _, item in snapshot.chunks(session_id)
            ]

    def text(self, session_id: int, byte_lo: int, byte_hi: int | None) -> bytes:
        """See Store.text."""
        with self._catalog.read() as snapshot:
            item = self.require_session(snapshot, session_id)
            byte_hi = item.n_bytes if byte_hi is None else byte_hi
            _require_span("bytes", byte_lo, byte_hi, item.n_bytes)
            chunks = []
            for number, chunk in snapshot.chunks_from_byte(session_id, byte_lo, item.n_chunks):
                if chunk.first_byte >= byte_hi:
                    break
                if chunk.n_bytes:
                    chunks.append((number, chunk))
        parts = []
        for number, chunk in chunks:
            lo, hi = max(0, byte_lo - chunk.first_byte), min(chunk.n_bytes, byte_hi - chunk.first_byte)
            if lo < hi:
                parts.append(self.read_chunk(session_id, number, chunk).text(lo, hi))
        return b"".join(parts)


def _items(snapshot: Snapshot) -> Iterator[SessionItem]:
    return (item for _, item in snapshot.sessions())


def _source_row(session_id: int, item: SourceItem) -> SourceRow:
    return SourceRow(session_id, item.name, item.digest, item.n_tokens, item.n_bytes, item.n_sentences, item.complete)


def _is_forgotten(item: SourceItem) -> bool:
    return not item.name and item.digest.startswith((FORGOTTEN_SOURCE, SEALED_NAME))


def _require_span(field: str, lo: int, hi: int, end: int) -> None:
    if not 0 <= lo <= hi <= end:
        raise InputError(field, f"[{lo}, {hi})", f"spans within [0, {end}) are allowed")


def _page_dropped(session_id: int, page: int, state: PageState) -> PageDropped:
    message = f"page {page} of session {session_id} has no KV ({state.name.lower()}): rebuild it from the text"
    return PageDropped(message, session_id=session_id, page=page)


def page_damaged(session_id: int, page: int, error: RecordDamaged) -> PageDamaged:
    """What a damaged record means to those who asked for a page."""
    message = f"page {page} of session {session_id} is damaged ({error}): rebuild it from the text"
    return PageDamaged(message, session_id=session_id, page=page, segment=error.segment, offset=error.offset)
