"""Walking a segment without the catalog: every record whose header is whole, also behind damaged bytes.

Knows headers and how records follow one another; refuses to know which of them count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from livingkv.errors import RecordDamaged
from livingkv.store.disk import Disk
from livingkv.store.records import (
    ALIGNMENT,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    SEGMENT_HEADER_BYTES,
    Location,
    RecordHeader,
    record_bytes,
    unpack_record_header,
    verified_payload,
)

_WINDOW_BYTES = 1 << 20


class FoundRecord(NamedTuple):
    """A record with a whole header. It may still fail its payload's checksum."""

    location: Location
    header: RecordHeader

    @property
    def end(self) -> int:
        """Offset of what follows."""
        return self.location.offset + record_bytes(self.location.length)


class SegmentWalk:
    """The records of one segment file, in order. Damaged stretches are noted in `problems` and skipped."""

    def __init__(self, disk: Disk, path: Path, number: int) -> None:
        self._disk = disk
        self._number = number
        self._descriptor = disk.open_existing(path, writable=False)
        self.size = disk.size(self._descriptor)
        self.problems: list[str] = []

    def __iter__(self) -> Iterator[FoundRecord]:
        offset: int | None = SEGMENT_HEADER_BYTES
        while offset is not None and offset < self.size:
            data = self._disk.read(self._descriptor, RECORD_HEADER_BYTES, offset)
            try:
                header = unpack_record_header(data, self._number, offset)
            except RecordDamaged as error:
                self.problems.append(str(error))
                offset = self._next_header(offset + ALIGNMENT)
                continue
            found = FoundRecord(Location(self._number, offset, header.length), header)
            yield found
            offset = found.end

    def payload(self, found: FoundRecord) -> bytes:
        """A record's payload. Raises RecordDamaged."""
        offset = found.location.offset
        data = self._disk.read(self._descriptor, RECORD_HEADER_BYTES + found.header.length, offset)
        return verified_payload(data, found.header, self._number, offset)

    def _next_header(self, start: int) -> int | None:
        """Offset of the next whole header from `start` on."""
        while start < self.size:
            window = self._disk.read(self._descriptor, _WINDOW_BYTES + RECORD_HEADER_BYTES, start)
            at = window.find(RECORD_MAGIC)
            while 0 <= at < _WINDOW_BYTES:
                if not at % ALIGNMENT and self._is_header(window[at : at + RECORD_HEADER_BYTES], start + at):
                    return start + at
                at = window.find(RECORD_MAGIC, at + 1)
            start += _WINDOW_BYTES
        return None

    def _is_header(self, data: bytes, offset: int) -> bool:
        try:
            unpack_record_header(data, self._number, offset)
        except RecordDamaged:
            return False
        return True

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._descriptor)
