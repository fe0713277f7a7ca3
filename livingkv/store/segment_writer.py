"""Appending to segments: records past the committed length, rollover, sync.

Knows files of one store and how far commits cover them; refuses to know the catalog and payloads. One thread at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from livingkv.errors import RecordDamaged
from livingkv.store.disk import Disk, Step, errors_named
from livingkv.store.items import SegmentItem
from livingkv.store.records import (
    SEGMENT_HEADER_BYTES,
    Location,
    Record,
    SegmentHeader,
    SegmentKind,
    pack_segment_header,
    unpack_segment_header,
)

_BATCH_BYTES = 1 << 23


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"{number:08d}.seg"


@dataclass(slots=True)
class _Active:
    """The segment of one kind that records go to. `end` is ahead of the commit while an append is under way."""

    number: int
    descriptor: int
    end: int
    n_records: int


class SegmentWriter:
    """Writes records of both kinds. `begin` first; after a failed append `begin` again with what the catalog says."""

    def __init__(self, disk: Disk, folder: Path, store_id: bytes, rollover_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._store_id = store_id
        self._rollover_bytes = rollover_bytes
        self._active: dict[SegmentKind, _Active] = {}
        self._touched: dict[int, tuple[SegmentKind, _Active]] = {}
        self._closed_numbers: set[int] = set()
        self._has_new_files = False
        self.next_segment = 0

    def begin(self, segments: Mapping[int, SegmentItem], next_segment: int) -> None:
        """Take up the newest segment of each kind at its committed length, unless it may not be appended to."""
        self.close()
        self.next_segment = next_segment
        for kind in SegmentKind:
            numbers = [number for number, item in segments.items() if item.kind is kind]
            if numbers and max(numbers) not in self._closed_numbers:
                self._take_up(kind, max(numbers), segments[max(numbers)])

    def _take_up(self, kind: SegmentKind, number: int, item: SegmentItem) -> None:
        """Go on with a segment if it is whole as far as that can be seen; else the next append begins a new one."""
        try:
            descriptor = self._disk.open_existing(segment_path(self._folder, number), writable=True)
        except (FileNotFoundError, IsADirectoryError):
            return
        with ExitStack() as stack:
            stack.callback(self._disk.close, descriptor)
            try:
                unpack_segment_header(self._disk.read(descriptor, SEGMENT_HEADER_BYTES, 0), number)
            except RecordDamaged:
                return
            if self._disk.size(descriptor) < item.committed:
                return
            stack.pop_all()
        self._active[kind] = _Active(number, descriptor, item.committed, item.n_records)

    def write(self, kind: SegmentKind, records: Iterable[Record]) -> list[Location]:
        """Write records one after another; they are not durable before `sync`. Raises StoreError."""
        locations: list[Location] = []
        batch: list[Record] = []
        n_waiting = 0
        for record in records:
            active = self._with_room(kind, sum(map(len, record)), batch)
            locations.append(Location(active.number, active.end, len(record[1])))
            active.end += sum(map(len, record))
            active.n_records += 1
            batch.append(record)
            n_waiting += sum(map(len, record))
            if n_waiting > _BATCH_BYTES:
                self._flush(kind, batch)
                n_waiting = 0
        self._flush(kind, batch)
        return locations

    def _with_room(self, kind: SegmentKind, n_bytes: int, batch: list[Record]) -> _Active:
        """The active segment, or a new one if the record does not fit; then the batch for the old one is written."""
        active = self._active.get(kind)
        if active is not None and (active.end + n_bytes <= self._rollover_bytes or active.end == SEGMENT_HEADER_BYTES):
            self._touched[active.number] = (kind, active)
            return active
        self._flush(kind, batch)
        return self._make(kind)

    def _make(self, kind: SegmentKind) -> _Active:
        number = self.next_segment
        path = segment_path(self._folder, number)
        header = pack_segment_header(SegmentHeader(kind, number, self._store_id, int(time.time() * 1000)))
        with errors_named(path):
            active = _Active(number, self._disk.open_new(path), len(header), 0)
            self._retire(kind)
            self._active[kind] = active
            self._touched[number] = (kind, active)
            self.next_segment += 1
            self._has_new_files = True
            self._disk.write(active.descriptor, [header], 0)
        self._disk.reached(Step.SEGMENT_MADE)
        return active

    def _retire(self, kind: SegmentKind) -> None:
        """Stop appending to the active segment; it stays open for its sync if this append touched it."""
        active = self._active.pop(kind, None)
        if active is not None and active.number not in self._touched:
            self._disk.close(active.descriptor)

    def retire(self, number: int) -> None:
        """Write to this segment no more: its records are about to move. Nothing is under way."""
        self._closed_numbers.add(number)
        for kind, active in list(self._active.items()):
            if active.number == number:
                self._retire(kind)

    def _flush(self, kind: SegmentKind, batch: list[Record]) -> None:
        if not batch:
            return
        active = self._active[kind]
        parts = [part for record in batch for part in record]
        with errors_named(segment_path(self._folder, active.number)):
            self._disk.write(active.descriptor, parts, active.end - sum(map(len, parts)))
        batch.clear()

    def sync(self) -> None:
        """Make everything written since the last commit durable; blocks. Raises StoreError."""
        for number, (_, active) in self._touched.items():
            with errors_named(segment_path(self._folder, number)):
                try:
                    self._disk.sync(active.descriptor)
                except OSError:
                    self._closed_numbers.add(number)  # the kernel may have dropped what it could not write
                    raise
        if self._has_new_files:
            with errors_named(self._folder):
                self._disk.sync_folder(self._folder)

    def touched(self) -> dict[int, SegmentItem]:
        """What the catalog must say of the segments that this append wrote to."""
        return {
            number: SegmentItem(kind, active.n_records, active.end) for number, (kind, active) in self._touched.items()
        }

    def committed(self) -> None:
        """The catalog covers everything that was written."""
        current = {active.number for active in self._active.values()}
        for number, (_, active) in self._touched.items():
            if number not in current:
                self._disk.close(active.descriptor)
        self._touched.clear()
        self._has_new_files = False

    def close(self) -> None:
        """Close all files. What was written since the last commit is not covered by it."""
        descriptors = {active.number: active.descriptor for active in self._active.values()}
        descriptors |= {number: active.descriptor for number, (_, active) in self._touched.items()}
        self._active.clear()
        self._touched.clear()
        self._has_new_files = False
        for descriptor in descriptors.values():
            with contextlib.suppress(OSError):
                self._disk.close(descriptor)
