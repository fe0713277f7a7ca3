"""The disk tier: page records read from segments straight into their rooms, side by side where they lie so.

Knows segments, the page cache and block borders; refuses to know the catalog and to verify.

What the kernel does not hold is read directly (O_DIRECT), what it holds is copied from its cache. Why, and what was
measured: docs/decisions/0007-reads-past-the-page-cache.md.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from livingkv.errors import RecordDamaged
from livingkv.store.disk import Disk
from livingkv.store.records import record_bytes
from livingkv.store.segment_reader import OpenSegment, SegmentReader, adjacent
from livingkv.tiers.bandwidth import Bandwidth
from livingkv.tiers.residency import resident_fraction
from livingkv.tiers.tier import BLOCK_BYTES, PageKey, record_start

CACHED_FRACTION = 0.25
"""A run of which the kernel holds this much is read through its cache."""

DIRECT_BYTES = 1 << 16
"""Shorter runs are read through the kernel's cache: what they cost is the latency, either way."""


class DiskCounts(NamedTuple):
    """Reads so far: how many, of which past the page cache, and their bytes, block borders included."""

    n_reads: int
    n_direct: int
    n_bytes: int


class DiskTier:
    """A Tier over the segments of one open store."""

    name = "disk"

    def __init__(self, segments: SegmentReader, disk: Disk) -> None:
        self._segments = segments
        self._disk = disk
        self._cold = Bandwidth()
        self._cached = Bandwidth()
        self._counts = DiskCounts(0, 0, 0)
        self._direct_works = True

    def get(self, keys: Sequence[PageKey], rooms: Sequence[memoryview]) -> list[memoryview | RecordDamaged | None]:
        """See Tier: one read for records that follow one another."""
        answers: list[memoryview | RecordDamaged | None] = [None] * len(keys)
        for run in adjacent(keys):
            records = self._read_run([keys[i] for i in run], [rooms[i] for i in run])
            for position, record in zip(run, records, strict=True):
                answers[position] = record
        return answers

    def _read_run(self, keys: Sequence[PageKey], rooms: Sequence[memoryview]) -> list[memoryview | RecordDamaged]:
        segment, offset, _ = keys[0].location
        try:
            with self._segments.use(segment) as file:
                n_read = self._read(file, keys, rooms)
        except RecordDamaged as error:
            return [error for _ in keys]
        except OSError as error:
            if len(keys) > 1:  # one bad sector: have the others
                return [self._read_run([key], [room])[0] for key, room in zip(keys, rooms, strict=True)]
            message = f"segment {segment} offset {offset}: cannot be read ({error.strerror or error})"
            return [RecordDamaged(message, segment=segment, offset=offset)]
        first = keys[0].location.offset // BLOCK_BYTES * BLOCK_BYTES
        records: list[memoryview | RecordDamaged] = []
        for key, room in zip(keys, rooms, strict=True):
            start = record_start(key)
            there = max(0, min(record_bytes(key.location.length), first + n_read - key.location.offset))
            records.append(room[start : start + there])  # cut where the file ended: the room may hold older bytes
        return records

    def _read(self, file: OpenSegment, keys: Sequence[PageKey], rooms: Sequence[memoryview]) -> int:
        """Read the blocks of a run into the rooms of its records; answers how many bytes there were."""
        spans = [_blocks(key) for key in keys]
        parts: list[memoryview] = []
        shared: list[bool] = []
        end = spans[0].lo
        for span, room in zip(spans, rooms, strict=True):
            shared.append(span.lo < end)  # its first block is the last one of the record before
            parts.append(room[max(span.lo, end) - span.lo : span.hi - span.lo])
            end = span.hi
        lo, wanted_end = spans[0].lo, keys[-1].location.offset + record_bytes(keys[-1].location.length)
        n_read = self._timed_read(file, parts, lo, wanted_end)
        for index in range(1, len(keys)):
            if shared[index]:
                last = spans[index].lo - spans[index - 1].lo
                rooms[index][:BLOCK_BYTES] = rooms[index - 1][last : last + BLOCK_BYTES]
        return n_read

    def _timed_read(self, file: OpenSegment, parts: Sequence[memoryview], lo: int, hi: int) -> int:
        cached = resident_fraction(file.descriptor, lo, hi) >= CACHED_FRACTION
        direct = file.direct if self._direct_works and not cached and hi - lo >= DIRECT_BYTES else None
        started = perf_counter()
        try:
            n_read = self._disk.read_into(file.descriptor if direct is None else direct, parts, lo, hi - lo)
        except OSError as error:
            if direct is None or error.errno != errno.EINVAL:
                raise
            self._direct_works = False  # this file system wants other alignments
            return self._timed_read(file, parts, lo, hi)
        (self._cached if cached else self._cold).add(n_read, perf_counter() - started)
        counts = self._counts
        self._counts = DiskCounts(counts.n_reads + 1, counts.n_direct + (direct is not None), counts.n_bytes + n_read)
        return n_read

    def estimate_seconds(self, keys: Sequence[PageKey]) -> float | None:
        """See Tier. What the kernel holds in its cache is counted at the speed of the cache, if that is known."""
        total = 0.0
        for run in adjacent(keys):
            lo, last = _blocks(keys[run[0]]).lo, keys[run[-1]].location
            hi = last.offset + record_bytes(last.length)
            try:
                with self._segments.use(keys[run[0]].location.segment) as file:
                    cached = resident_fraction(file.descriptor, lo, hi) >= CACHED_FRACTION
            except (OSError, RecordDamaged):
                cached = False  # reading it will say what is wrong
            speeds = (self._cached, self._cold) if cached else (self._cold, self._cached)
            known = [seconds for speed in speeds if (seconds := speed.seconds_for(hi - lo)) is not None]
            if not known:
                return None
            total += known[0]
        return total

    def size_bytes(self) -> int:
        """See Tier: the segments' bytes, pages and text."""
        return self._segments.size_bytes()

    def counts(self) -> DiskCounts:
        """Reads so far."""
        return self._counts


def cached_share(segments: SegmentReader, keys: Sequence[PageKey]) -> float:
    """How much of these records the kernel holds in memory already, 0 to 1. Reads nothing."""
    n_bytes = n_cached = 0.0
    for run in adjacent(keys):
        lo, last = _blocks(keys[run[0]]).lo, keys[run[-1]].location
        hi = last.offset + record_bytes(last.length)
        with contextlib.suppress(OSError, RecordDamaged), segments.use(keys[run[0]].location.segment) as file:
            n_cached += resident_fraction(file.descriptor, lo, hi) * (hi - lo)
        n_bytes += hi - lo
    return n_cached / n_bytes if n_bytes else 0.0


class _Span(NamedTuple):
    lo: int
    hi: int


def _blocks(key: PageKey) -> _Span:
    """The whole blocks that hold a record."""
    end = key.location.offset + record_bytes(key.location.length)
    return _Span(key.location.offset // BLOCK_BYTES * BLOCK_BYTES, -(-end // BLOCK_BYTES) * BLOCK_BYTES)
