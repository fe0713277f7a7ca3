"""Finding damage: catalog rows, their sums, every record, that all of them agree, and the archive.

Behind Store.check; changes nothing.

Damage becomes one line in the report; only a store that cannot be read at all raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from livingkv.errors import KeyMissing, LivingKVError, RecordDamaged, StoreError
from livingkv.results import CheckReport
from livingkv.store.archive import Archive
from livingkv.store.catalog import Catalog
from livingkv.store.check_segments import SegmentCheck
from livingkv.store.chunk_check import chunk_problems
from livingkv.store.chunk_payload import Chunk
from livingkv.store.disk import Disk
from livingkv.store.fingerprint import Fingerprint
from livingkv.store.items import ChunkItem, PageItem, PageState, SegmentItem, SessionFlags, SessionItem
from livingkv.store.reading import Reading, wanted_chunk, wanted_page
from livingkv.store.sealing import Place
from livingkv.store.segment_reader import SegmentReader, Wanted
from livingkv.store.snapshot import Snapshot


def check_store(
    root: Path, disk: Disk, catalog: Catalog, reading: Reading, reader: SegmentReader, fingerprint: Fingerprint
) -> CheckReport:
    """See Store.check."""
    facts = _Facts(fingerprint.page_tokens)
    try:
        with catalog.read() as snapshot:
            facts.gather(snapshot)
    except RecordDamaged as error:
        facts.problems.append(str(error))
    facts.check_tails(reading)
    facts.check_records(reader, reading)
    segments = SegmentCheck(disk, root, facts.segments, facts.known_records())
    problems = facts.problems + segments.problems() + Archive(disk, root).problems()
    return CheckReport(str(root), len(facts.pages), segments.n_records, facts.n_sentences, tuple(problems))


class _Facts:
    """What the catalog says, checked against itself and then against the records."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self.problems: list[str] = []
        self.segments: dict[int, SegmentItem] = {}
        self.sessions: dict[int, SessionItem] = {}
        self.pages: dict[tuple[int, int], PageItem] = {}
        self.chunks: dict[tuple[int, int], ChunkItem] = {}
        self.n_sentences = 0
        self._locked: set[int] = set()

    def gather(self, snapshot: Snapshot) -> None:
        """Read all rows; note those that are damaged or contradict one another."""
        self.problems += snapshot.damaged_entries()
        try:
            self.segments = snapshot.segments()
            self.sessions = dict(snapshot.sessions())
            self.pages = {(session_id, page): item for session_id, page, item in snapshot.pages()}
            named = dict(snapshot.names())
            ages = sorted((item.stored_ms, key) for key, item in snapshot.requests())
            if ages != list(snapshot.request_ages()):
                self.problems.append("the stored requests are not those that are listed by age")
        except RecordDamaged as error:
            self.problems.append(f"the catalog cannot be checked further: {error}")
            return
        for session_id, item in self.sessions.items():
            if named.get(item.name) != session_id:
                self.problems.append(f"session {session_id}: its name {item.name!r} leads elsewhere")
            try:
                self.problems += (f"session {session_id}: {line}" for line in self._session(snapshot, session_id, item))
            except RecordDamaged as error:
                self.problems.append(f"session {session_id} cannot be checked further: {error}")

    def _session(self, snapshot: Snapshot, session_id: int, item: SessionItem) -> Iterator[str]:
        chunks = dict(snapshot.chunks(session_id))
        self.chunks |= {(session_id, number): chunk for number, chunk in chunks.items()}
        self.n_sentences += item.n_sentences
        yield from _chunk_contradictions(item, chunks)
        for number, chunk in chunks.items():
            if chunk.n_sentences:
                place = snapshot.sentence_place(chunk.first_sentence)
                if place != (chunk.first_sentence, session_id, number):
                    yield f"chunk {number}: its sentences are not found by their ids"
        sources = dict(snapshot.sources(session_id))
        if list(sources) != list(range(item.n_sources)):
            yield f"{len(sources)} sources, but its row says {item.n_sources}"
        for number, source in sources.items():
            own = list(snapshot.source_chunks(session_id, number, 0))
            if own != [chunk_number for chunk_number, chunk in chunks.items() if chunk.source == number]:
                yield f"source {number}: its list of chunks is wrong"
            if source.n_bytes != sum(chunks[i].n_bytes for i in own if i in chunks):
                yield f"source {number}: its chunks do not add up to {source.n_bytes} bytes"
        yield from _page_contradictions(
            item, {page: each for (owner, page), each in self.pages.items() if owner == session_id}, self._page_tokens
        )

    def check_tails(self, reading: Reading) -> None:
        """Verify every tail's checksum."""
        for session_id, item in self.sessions.items():
            if item.flags & SessionFlags.NEEDS_TAIL:  # given up or never there, as pages may be
                continue
            try:
                reading.read_tail(session_id)
            except KeyMissing:  # its checksum was right
                continue
            except LivingKVError as error:
                self.problems.append(str(error))

    def check_records(self, reader: SegmentReader, reading: Reading) -> None:
        """Read every page and chunk that the catalog lists; those without a key as far as their checksums."""
        keys = {item.key_id for item in self.sessions.values()}
        locked = {key_id for key_id in keys if not reading.vault.can_open(key_id)}
        damaged = filter(None, (_key_problem(reading, key_id) for key_id in sorted(locked)))
        self.problems = list(dict.fromkeys([*self.problems, *damaged]))  # tails name them, too
        self._locked = {session_id for session_id, item in self.sessions.items() if item.key_id in locked}
        self._check_pages(reader, reading)
        places = list(self.chunks)
        wanted = [wanted_chunk(number, self.chunks[session_id, number]) for session_id, number in places]
        for position, payload in self._read(reader, wanted):
            session_id, number = places[position]
            item = self.chunks[session_id, number]
            if session_id in self._locked and not isinstance(payload, RecordDamaged):
                continue
            try:
                if isinstance(payload, RecordDamaged):
                    raise payload
                chunk = Chunk(reading.opened(session_id, Place(*wanted[position][1:]), payload))
                lines = _differences(chunk, item, is_shared=item.owner != session_id)
            except LivingKVError as error:
                lines = [f"{error}; {_what_is_lost(item)}"]
            self.problems += (f"session {session_id} chunk {number}: {line}" for line in lines)

    def _check_pages(self, reader: SegmentReader, reading: Reading) -> None:
        places = [place for place, item in self.pages.items() if item.state is PageState.PRESENT]
        wanted = [wanted_page(page, self.pages[session_id, page]) for session_id, page in places]
        for position, payload in self._read(reader, wanted):
            session_id, page = places[position]
            try:
                if isinstance(payload, RecordDamaged):
                    raise payload
                if session_id not in self._locked:
                    reading.opened(session_id, Place(*wanted[position][1:]), payload)
            except LivingKVError as error:
                self.problems.append(f"session {session_id} page {page}: {error}")

    def _read(self, reader: SegmentReader, wanted: list[Wanted]) -> Iterator[tuple[int, bytes | RecordDamaged]]:
        try:
            yield from reader.read_all(wanted)
        except LivingKVError as error:
            self.problems.append(f"records cannot be checked further: {error}")

    def known_records(self) -> dict[int, set[int]]:
        """Offsets of the records that the catalog lists, by segment."""
        known: dict[int, set[int]] = {number: set() for number in self.segments}
        places = [item.location for item in self.pages.values() if item.state is PageState.PRESENT]
        places += [item.location for item in self.chunks.values()]
        for place in places:
            known.setdefault(place.segment, set()).add(place.offset)
        return known


def _what_is_lost(item: ChunkItem) -> str:
    """What nobody can make anew when a chunk's record is gone, and what to do then."""
    tokens = f"tokens {item.first_token} to {item.first_token + item.n_tokens}"
    if not item.n_sentences:
        return f"the ids of {tokens} are lost"
    last = item.first_sentence + item.n_sentences - 1
    return (
        f"bytes {item.first_byte} to {item.first_byte + item.n_bytes} of the text, the ids of {tokens} and sentences "
        f"{item.first_sentence} to {last} are lost: ingest them again, and give them up by forgetting one of them"
    )


def _page_contradictions(item: SessionItem, pages: dict[int, PageItem], page_tokens: int) -> Iterator[str]:
    """Where a session's pages do not fit its tokens."""
    if list(pages) != list(range(item.n_sealed_tokens // page_tokens)) or item.n_sealed_tokens % page_tokens:
        yield f"{len(pages)} pages, but its row says {item.n_sealed_tokens} sealed tokens"
    if not 0 <= item.n_tokens - item.n_sealed_tokens < page_tokens:
        yield f"{item.n_tokens} tokens do not fit {item.n_sealed_tokens} sealed ones"
    for page, each in pages.items():
        if each.state is PageState.QUARANTINED:
            yield f"page {page} is in quarantine: rebuild it from the text"


def _chunk_contradictions(item: SessionItem, chunks: dict[int, ChunkItem]) -> Iterator[str]:
    """Where a session's chunks do not follow one another or do not add up to its row."""
    if list(chunks) != list(range(item.n_chunks)):
        yield f"{len(chunks)} chunks, but its row says {item.n_chunks}"
        return
    ends = (
        sum(chunk.n_tokens for chunk in chunks.values()),
        sum(chunk.n_bytes for chunk in chunks.values()),
        sum(chunk.n_sentences for chunk in chunks.values()),
    )
    if ends != (item.n_tokens, item.n_bytes, item.n_sentences):
        yield f"its chunks add up to {ends} tokens, bytes, sentences, but its row says otherwise"
    starts = [(chunk.first_token, chunk.first_byte) for chunk in chunks.values()]
    if starts and starts[0] != (0, 0):
        yield "its first chunk does not begin at 0"
    for (number, chunk), start in zip(list(chunks.items())[:-1], starts[1:], strict=True):
        if (chunk.first_token + chunk.n_tokens, chunk.first_byte + chunk.n_bytes) != start:
            yield f"chunk {number + 1} does not begin where chunk {number} ends"
    numbered = [chunk for chunk in chunks.values() if chunk.n_sentences]
    for earlier, later in pairwise(numbered):
        if earlier.first_sentence + earlier.n_sentences > later.first_sentence:
            yield f"sentence {later.first_sentence} is counted twice"


def _differences(chunk: Chunk, item: ChunkItem, *, is_shared: bool) -> list[str]:
    """Where a chunk's record and its row differ, or its spans do not tile."""
    lines = []
    row = (item.first_token, item.first_byte, item.first_sentence, item.n_tokens, item.n_bytes, item.n_sentences)
    first_sentence = item.first_sentence if is_shared else chunk.place.first_sentence  # a fork numbers its own
    if (*chunk.place[:2], first_sentence, chunk.n_tokens, chunk.n_bytes, chunk.n_sentences) != row:
        lines.append("the record's counts are not those of the catalog")
    return [*lines, *chunk_problems(chunk)]


def _key_problem(reading: Reading, key_id: bytes) -> str | None:
    """What is wrong with the file of a key; None for one that is not there: it may be elsewhere on purpose."""
    try:
        reading.vault.require(key_id, "a session")
    except KeyMissing:
        return None
    except StoreError as error:
        return str(error)
    return None
