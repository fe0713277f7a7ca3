"""Segment and record headers (FORMAT.md, section 4): bytes to typed headers and back, every checksum checked.

Knows one header at a time; refuses to know files, payloads and the catalog.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple, TypeVar

from xxhash import xxh3_64_intdigest as checksum

from livingkv.errors import FormatUnsupported, RecordDamaged

VERSION = 1
ALIGNMENT = 8

_SEGMENT = struct.Struct("<8sHHI16sQ16sQ")
_RECORD = struct.Struct("<4sBBHIIQQQQ")
_SEGMENT_MAGIC = b"LKVSEG\r\n"
RECORD_MAGIC = b"LKVR"
_CHECKSUM_BYTES = 8
_KNOWN_FLAGS = 3

SEGMENT_HEADER_BYTES = _SEGMENT.size
RECORD_HEADER_BYTES = _RECORD.size


class SegmentKind(IntEnum):
    """What records a segment holds."""

    LOG = 1
    PAGES = 2


class RecordType(IntEnum):
    """What a record's payload is."""

    SESSION = 1
    CHUNK = 2
    PAGE = 3
    VOID = 4
    TAIL = 5


class RecordFlags(IntFlag):
    """Bits of a record's header."""

    NONE = 0
    ENDS_COMMIT = 1
    SEALED = 2


class SegmentHeader(NamedTuple):
    """The first bytes of a segment file."""

    kind: SegmentKind
    number: int
    store_id: bytes
    created_ms: int


class RecordHeader(NamedTuple):
    """The bytes before a payload. `record_type` is a plain number, since later versions may have more types."""

    record_type: int
    flags: int
    session_id: int
    length: int
    number: int
    sequence: int
    payload_checksum: int


Record = tuple[bytes, bytes | memoryview, bytes]
"""Header, payload and padding, to be written one after another."""


class Location(NamedTuple):
    """Where a record stands: segment number, byte offset of its header, length of its payload."""

    segment: int
    offset: int
    length: int


def padded(n_bytes: int) -> int:
    """`n_bytes` rounded up to the alignment of records."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def record_bytes(payload_bytes: int) -> int:
    """Bytes that a record with such a payload takes in its segment."""
    return padded(RECORD_HEADER_BYTES + payload_bytes)


def pack_segment_header(header: SegmentHeader) -> bytes:
    """The 64 bytes of a segment header."""
    body = _SEGMENT.pack(
        _SEGMENT_MAGIC, VERSION, header.kind, header.number, header.store_id, header.created_ms, bytes(16), 0
    )[:-_CHECKSUM_BYTES]
    return body + checksum(body).to_bytes(_CHECKSUM_BYTES, "little")


def unpack_segment_header(data: bytes, number: int) -> SegmentHeader:
    """The header of segment `number`. Raises RecordDamaged, or FormatUnsupported for a newer version."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise RecordDamaged(f"segment {number}: shorter than its header", segment=number, offset=0)
    magic, version, kind, stored_number, store_id, created_ms, _, check = _SEGMENT.unpack_from(data)
    if magic != _SEGMENT_MAGIC or check != checksum(data[: SEGMENT_HEADER_BYTES - _CHECKSUM_BYTES]):
        raise RecordDamaged(f"segment {number}: damaged header", segment=number, offset=0)
    if version > VERSION or kind not in SegmentKind.__members__.values():
        raise FormatUnsupported(f"segment {number} has format {version}, kind {kind}: update livingkv to read it")
    if stored_number != number:
        raise RecordDamaged(f"segment {number}: the file is segment {stored_number}", segment=number, offset=0)
    return SegmentHeader(SegmentKind(kind), stored_number, store_id, created_ms)


def pack_record(
    record_type: RecordType,
    flags: RecordFlags,
    session_id: int,
    number: int,
    sequence: int,
    payload: bytes | memoryview,
    length: int | None = None,
) -> Record:
    """A record that has not been written yet. `length` is given where the payload stands in the file already."""
    length = len(payload) if length is None else length
    body = _RECORD.pack(
        RECORD_MAGIC, VERSION, record_type, flags, session_id, length, number, sequence, checksum(payload), 0
    )[:-_CHECKSUM_BYTES]
    header = body + checksum(body).to_bytes(_CHECKSUM_BYTES, "little")
    return header, payload, bytes(record_bytes(len(payload)) - RECORD_HEADER_BYTES - len(payload))


def pack_void_header(length: int) -> bytes:
    """The header over an erased payload of `length` bytes, which nothing vouches for any more."""
    return pack_record(RecordType.VOID, RecordFlags.NONE, 0, 0, 0, b"", length=length)[0]


def unpack_record_header(data: bytes | memoryview, segment: int, offset: int) -> RecordHeader:
    """The record header at the start of `data`, which stands at `offset` of `segment`.

    Raises RecordDamaged, or FormatUnsupported for a newer version or an unknown flag.
    """
    where = f"segment {segment} offset {offset}"
    if len(data) < RECORD_HEADER_BYTES:
        raise RecordDamaged(f"{where}: the segment ends inside a record", segment=segment, offset=offset)
    magic, version, record_type, flags, *numbers, check = _RECORD.unpack_from(data)
    if magic != RECORD_MAGIC or check != checksum(data[: RECORD_HEADER_BYTES - _CHECKSUM_BYTES]):
        raise RecordDamaged(f"{where}: damaged record header", segment=segment, offset=offset)
    if version > VERSION or flags & ~_KNOWN_FLAGS:
        raise FormatUnsupported(f"{where}: record format {version}, flags {flags}: update livingkv to read it")
    return RecordHeader(record_type, flags, *numbers)


Bytes = TypeVar("Bytes", bytes, memoryview)


def verified_payload(data: Bytes, header: RecordHeader, segment: int, offset: int) -> Bytes:
    """The payload of the record at the start of `data`: a part of it, not a copy, where `data` is a view.

    Raises RecordDamaged if it is short or fails its checksum.
    """
    payload = data[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + header.length]
    if len(payload) < header.length:
        raise RecordDamaged(
            f"segment {segment} offset {offset}: the segment ends inside a record", segment=segment, offset=offset
        )
    if checksum(payload) != header.payload_checksum:
        raise RecordDamaged(
            f"segment {segment} offset {offset}: the payload fails its checksum", segment=segment, offset=offset
        )
    return payload
