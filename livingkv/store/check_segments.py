"""Walking segment files record by record, for `Store.check`: nothing but whole records up to the committed length."""

from __future__ import annotations

from pathlib import Path

from livingkv.errors import LivingKVError
from livingkv.store.disk import Disk
from livingkv.store.items import SegmentItem
from livingkv.store.making import SEGMENTS
from livingkv.store.records import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordType,
    record_bytes,
    unpack_record_header,
    unpack_segment_header,
    verified_payload,
)
from livingkv.store.segment_writer import segment_path


class SegmentCheck:
    """Walks all segments. `known` are the records, by segment and offset, whose payloads were verified already."""

    def __init__(self, disk: Disk, root: Path, segments: dict[int, SegmentItem], known: dict[int, set[int]]) -> None:
        self._disk = disk
        self._folder = root / SEGMENTS
        self._segments = segments
        self._known = known
        self.n_records = 0

    def problems(self) -> list[str]:
        """One line for each thing that is wrong; `n_records` counts whole records then."""
        found = [
            f"segment {number} is not in the catalog, but a record is"
            for number in self._known.keys() - self._segments.keys()
        ]
        for number, item in self._segments.items():
            try:
                found += self._segment(number, item)
            except OSError as error:
                found.append(f"segment {number}: cannot be read ({error.strerror or error})")
        return found

    def _segment(self, number: int, item: SegmentItem) -> list[str]:
        descriptor = self._disk.open_existing(segment_path(self._folder, number), writable=False)
        try:
            found = []
            size = self._disk.size(descriptor)
            if size < item.committed:
                found.append(f"segment {number}: {size} bytes, but {item.committed} are committed")
            try:
                unpack_segment_header(self._disk.read(descriptor, SEGMENT_HEADER_BYTES, 0), number)
            except LivingKVError as error:
                return [*found, str(error)]
            return found + self._walk(descriptor, number, item)
        finally:
            self._disk.close(descriptor)

    def _walk(self, descriptor: int, number: int, item: SegmentItem) -> list[str]:
        found: list[str] = []
        resume = sorted(self._known.get(number, ()), reverse=True)
        offset, n_records = SEGMENT_HEADER_BYTES, 0
        while offset < item.committed:
            while resume and resume[-1] <= offset:
                resume.pop()
            try:
                offset = self._record(descriptor, number, offset)
                n_records += 1
            except LivingKVError as error:
                known = offset in self._known.get(number, ())
                if not known:  # a known one has its own line already
                    found.append(str(error))
                offset = resume[-1] if resume else item.committed
        self.n_records += n_records
        if not found and offset != item.committed:
            found.append(f"segment {number}: the last record goes past the committed length")
        if not found and n_records != item.n_records:
            found.append(f"segment {number}: {n_records} records can be read, but {item.n_records} are committed")
        return found

    def _record(self, descriptor: int, number: int, offset: int) -> int:
        """Verify one record; the offset of the next."""
        header = unpack_record_header(self._disk.read(descriptor, RECORD_HEADER_BYTES, offset), number, offset)
        if offset not in self._known.get(number, ()) and header.record_type != RecordType.VOID:
            data = self._disk.read(descriptor, RECORD_HEADER_BYTES + header.length, offset)
            verified_payload(data, header, number, offset)
        return offset + record_bytes(header.length)
