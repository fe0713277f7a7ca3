"""What a portable file must hold to be one session (FORMAT.md, section 13): its header's fields, its records in order.

Knows one file's parts as they come; refuses to know the store that they go to. A right checksum says that the file is
as somebody wrote it, and not that it was livingkv.
"""

from __future__ import annotations

from dataclasses import dataclass

from livingkv.errors import FormatUnsupported, InputError, RecordDamaged
from livingkv.json_fields import FieldError, Fields
from livingkv.store.appending import check_session_name
from livingkv.store.chunk_check import chunk_problems
from livingkv.store.chunk_payload import Chunk
from livingkv.store.fingerprint import Fingerprint
from livingkv.store.records import RecordHeader, RecordType

_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: later times have no date."""
_PARTS = (RecordType.CHUNK, RecordType.PAGE, RecordType.TAIL)


@dataclass(frozen=True, slots=True)
class PortableHeader:
    """What a portable file holds. `n_pages` counts the pages that are in it."""

    fingerprint: Fingerprint
    name: str
    created_ms: int
    text_only: bool
    n_tokens: int
    n_chunks: int
    n_pages: int
    has_tail: bool


def header_from_json(data: bytes) -> PortableHeader:
    """The header of a file. Raises RecordDamaged that names the field."""
    try:
        given = Fields.read(data)
        name = given.text("name")
        check_session_name(name)
        return PortableHeader(
            fingerprint=Fingerprint.from_json(given.value("fingerprint")),
            name=name,
            created_ms=given.integer("created_ms", hi=_LATEST_MS),
            text_only=given.flag("text_only"),
            n_tokens=given.integer("n_tokens"),
            n_chunks=given.integer("n_chunks"),
            n_pages=given.integer("n_pages"),
            has_tail=given.flag("has_tail"),
        )
    except InputError as error:
        raise RecordDamaged(f"name is no session's: {error}") from error
    except FieldError as error:
        raise RecordDamaged(str(error)) from error


class PortableRules:
    """One reading of a file's records, each given to `take`, then `finish`. Both raise RecordDamaged."""

    def __init__(self, header: PortableHeader) -> None:
        self._header = header
        self._part = 0
        self._n_tokens = self._n_bytes = 0
        self._n_chunks = self._n_pages = 0
        self._last_page: int | None = None
        self._has_tail = False

    def take(self, record: RecordHeader, payload: bytes) -> None:
        """Raise unless the record may come next. FormatUnsupported for one of a later version."""
        if record.record_type > max(RecordType):
            raise FormatUnsupported(f"it has type {record.record_type}: update livingkv to read it")
        if record.record_type not in _PARTS or record.flags or record.session_id or record.sequence:
            raise RecordDamaged("such a record may not be in an exported session")
        part = _PARTS.index(RecordType(record.record_type))
        if part < self._part:
            raise RecordDamaged("it is out of order: chunks come first, then pages, then the tail")
        self._part = part
        (self._chunk, self._page, self._tail)[part](record.number, payload)

    def _chunk(self, number: int, payload: bytes) -> None:
        if number != self._n_chunks:
            raise RecordDamaged(f"it is chunk {number}, not {self._n_chunks}")
        chunk = Chunk(payload)
        if chunk.place[:2] != (self._n_tokens, self._n_bytes):
            raise RecordDamaged(f"chunk {number} does not begin where the one before ends")
        if chunk.place.time_ms > _LATEST_MS:
            raise RecordDamaged(f"chunk {number}: its time is after the year 9999")
        for problem in chunk_problems(chunk):
            raise RecordDamaged(f"chunk {number}: {problem}")
        if "\0" in chunk.source_digest:
            raise RecordDamaged(f"chunk {number}: a zero byte is in its source's digest")
        if any(sentence >= chunk.n_sentences for sentence in chunk.forgotten):
            raise RecordDamaged(f"chunk {number}: a forgotten sentence is none of its {chunk.n_sentences}")
        self._n_chunks += 1
        self._n_tokens += chunk.n_tokens
        self._n_bytes += chunk.n_bytes

    def _page(self, number: int, payload: bytes) -> None:
        n_sealed = self._n_tokens // self._header.fingerprint.page_tokens
        if number >= n_sealed or (self._last_page is not None and number <= self._last_page):
            raise RecordDamaged(f"page {number} may not stand here: there are {n_sealed}, in ascending order")
        self._last_page = number
        self._n_pages += 1

    def _tail(self, number: int, payload: bytes) -> None:
        is_whole = not self._n_tokens % self._header.fingerprint.page_tokens
        if number or self._has_tail or (is_whole and payload):
            raise RecordDamaged("such a tail may not stand here")
        self._has_tail = True

    def finish(self) -> None:
        """Raise unless all has come that the header says."""
        header = self._header
        found = {
            "n_tokens": (header.n_tokens, self._n_tokens),
            "n_chunks": (header.n_chunks, self._n_chunks),
            "n_pages": (header.n_pages, self._n_pages),
            "has_tail": (header.has_tail, self._has_tail),
        }
        for name, (said, is_there) in found.items():
            if said != is_there:
                raise RecordDamaged(f"{name} is {said}, but the records say {is_there}")
