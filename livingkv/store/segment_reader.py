"""Reading records from segments: positioned reads, adjacent records in one, every checksum verified.

Knows files and record headers; refuses to know the catalog and payloads. Threads may share it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from livingkv.errors import RecordDamaged, StoreError
from livingkv.store.disk import Disk, store_error
from livingkv.store.records import (
    SEGMENT_HEADER_BYTES,
    Location,
    RecordType,
    record_bytes,
    unpack_record_header,
    unpack_segment_header,
    verified_payload,
)
from livingkv.store.segment_writer import segment_path

_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Of this process or machine: the record may be whole."""
OPEN_FILES = 64
READ_BYTES = 1 << 24


class Wanted(NamedTuple):
    """A record to read, and what its header must say."""

    location: Location
    record_type: RecordType
    session_id: int
    number: int


@dataclass(slots=True)
class OpenSegment:
    """A segment's file. `direct` reads past the kernel's page cache; None where the file system cannot."""

    descriptor: int
    direct: int | None = None
    n_users: int = 0


class SegmentReader:
    """Reads records of one store. Keeps up to `OPEN_FILES` segment files open."""

    def __init__(self, disk: Disk, folder: Path, store_id: bytes) -> None:
        self._disk = disk
        self._folder = folder
        self._store_id = store_id
        self._lock = threading.Lock()
        self._files: OrderedDict[int, OpenSegment] = OrderedDict()

    def read(self, wanted: Wanted) -> bytes:
        """One payload. Raises RecordDamaged, or FormatUnsupported for a record of a newer version."""
        return self._read_run([wanted])[0]

    def read_all(self, wanted: Sequence[Wanted]) -> Iterator[tuple[int, bytes | RecordDamaged]]:
        """Every payload, or why it cannot be had, with its position in `wanted`; in the order of the disk."""
        for run in adjacent(wanted):
            run_wanted = [wanted[position] for position in run]
            try:
                yield from zip(run, self._read_run(run_wanted), strict=True)
                continue
            except RecordDamaged as error:
                if len(run) == 1:
                    yield run[0], error
                    continue
            for position in run:  # the run holds a damaged record: find which
                try:
                    yield position, self.read(wanted[position])
                except RecordDamaged as error:
                    yield position, error

    def _read_run(self, run: Sequence[Wanted]) -> list[bytes]:
        """Payloads of records that follow one another, by one read."""
        segment, start, _ = run[0].location
        last = run[-1].location
        try:
            with self.use(segment) as file:
                data = self._disk.read(file.descriptor, last.offset + record_bytes(last.length) - start, start)
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise store_error(error, segment_path(self._folder, segment)) from error
            message = f"segment {segment} offset {start}: cannot be read ({error.strerror or error})"
            raise RecordDamaged(message, segment=segment, offset=start) from error
        view = memoryview(data)
        return [bytes(payload_of(view[item.location.offset - start :], item)) for item in run]

    @contextmanager
    def use(self, number: int) -> Iterator[OpenSegment]:
        """A segment's file, not closed inside the block. Raises OSError or RecordDamaged."""
        file = self._borrow(number)
        try:
            yield file
        finally:
            with self._lock:
                file.n_users -= 1

    def _borrow(self, number: int) -> OpenSegment:
        """A segment's file, not closed before `n_users` is counted down. Raises OSError or RecordDamaged."""
        with self._lock:
            file = self._files.get(number)
            if file is None:
                file = self._files[number] = self._open(number)
            self._files.move_to_end(number)
            file.n_users += 1
            if len(self._files) > OPEN_FILES:
                self._close_surplus()
        return file

    def _open(self, number: int) -> OpenSegment:
        self._close_removed()
        descriptor = self._disk.open_existing(segment_path(self._folder, number), writable=False)
        try:
            header = unpack_segment_header(self._disk.read(descriptor, SEGMENT_HEADER_BYTES, 0), number)
            if header.store_id != self._store_id:
                raise RecordDamaged(f"segment {number}: belongs to another store", segment=number, offset=0)
        except (OSError, StoreError):
            self._disk.close(descriptor)
            raise
        return OpenSegment(descriptor, self._disk.open_direct(segment_path(self._folder, number)))

    def _close(self, file: OpenSegment) -> None:
        self._disk.close(file.descriptor)
        if file.direct is not None:
            self._disk.close(file.direct)

    def _close_removed(self) -> None:
        """Let go of files whose records have moved: they take disk space as long as they are open."""
        for number, file in list(self._files.items()):
            if not file.n_users and not os.fstat(file.descriptor).st_nlink:
                self._close(self._files.pop(number))

    def release_removed(self) -> None:
        """Close files that were removed and that no read uses."""
        with self._lock:
            self._close_removed()

    def _close_surplus(self) -> None:
        idle = [number for number, file in self._files.items() if not file.n_users]
        for number in idle[: max(0, len(self._files) - OPEN_FILES)]:
            self._close(self._files.pop(number))

    def size_bytes(self) -> int:
        """Bytes of all segment files."""
        return sum(path.stat().st_size for path in self._folder.glob("*.seg"))

    def close(self) -> None:
        """Close all files. No read may be under way."""
        with self._lock:
            for file in self._files.values():
                self._close(file)
            self._files.clear()


def adjacent(wanted: Sequence[Wanted], most_bytes: int = READ_BYTES) -> Iterator[list[int]]:
    """Positions of records that follow one another on disk, run by run, each run at most `most_bytes` long."""
    run: list[int] = []
    run_start = run_end = 0
    run_segment: int | None = None
    for position in sorted(range(len(wanted)), key=lambda i: wanted[i].location):
        segment, offset, length = wanted[position].location
        end = offset + record_bytes(length)
        if run and (segment != run_segment or offset != run_end or end - run_start > most_bytes):
            yield run
            run = []
        if not run:
            run_segment, run_start = segment, offset
        run.append(position)
        run_end = end
    if run:
        yield run


def payload_of(data: memoryview, wanted: Wanted) -> bytes | memoryview:
    """The payload of the record at the start of `data`, which must be the wanted one; not a copy.

    Raises RecordDamaged, or FormatUnsupported for a record of a newer version.
    """
    segment, offset, length = wanted.location
    header = unpack_record_header(data, segment, offset)
    expected = (wanted.record_type, wanted.session_id, wanted.number, length)
    if (header.record_type, header.session_id, header.number, header.length) != expected:
        message = f"segment {segment} offset {offset}: another record stands here than the catalog says"
        raise RecordDamaged(message, segment=segment, offset=offset)
    return verified_payload(data, header, segment, offset)
