"""Small stores with pages for the tests of the tiers, on the disk that the tests' folder is on, and a remote tier."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from livingkv.errors import InputError, RecordDamaged
from livingkv.store import Disk, Store
from livingkv.store.records import RECORD_HEADER_BYTES, Location, RecordFlags, RecordType, pack_record, record_bytes
from livingkv.tiers import PageKey, TieredPages, budget_for, open_pages
from livingkv.tiers.tier import record_start
from tests.store.damage import flip, segment
from tests.store.store_cases import PAGE_TOKENS, SessionModel, grown, new_session, new_store, read_store

PAGE_BYTES = 100_010
"""Neither a multiple of 8 nor of a block, and long enough to be read directly."""
ROOM = budget_for(1, PAGE_BYTES)


def paged_store(path: Path, n_pages: int, *, page_bytes: int = PAGE_BYTES, disk: Disk | None = None) -> SessionModel:
    """A closed store with one session of so many random pages, in several segments."""
    rng = random.Random(n_pages)
    with new_store(path, disk=disk, segment_bytes=max(8 * page_bytes, 1 << 12)) as store:
        model = new_session(store)
        while len(model.pages) < n_pages:
            n_tokens = min(4, n_pages - len(model.pages)) * PAGE_TOKENS
            model = grown(store, model, rng, n_tokens=n_tokens, page_bytes=page_bytes)
    return model


@contextlib.contextmanager
def opened(path: Path, n_rooms: int = 8, *, disk: Disk | None = None) -> Iterator[tuple[Store, TieredPages]]:
    """A store and its pages, in RAM of so many rooms."""
    with (
        read_store(path, disk=disk) as store,
        open_pages(store, page_bytes=PAGE_BYTES, ram_budget_bytes=n_rooms * ROOM) as pages,
    ):
        yield store, pages


def flip_bit(path: Path, location: Location) -> None:
    """Flip one bit in the middle of a record's payload on disk."""
    flip(segment(path, location.segment), (location.offset + RECORD_HEADER_BYTES + location.length // 2) * 8)


def damage_page(path: Path, store: Store, model: SessionModel, page: int) -> None:
    """Flip one bit in the middle of a page."""
    flip_bit(path, store.locate_pages(model.session_id, [page])[0].location)


def record_of(key: PageKey, payload: bytes) -> bytes:
    """A page's record as a remote tier would keep it."""
    return b"".join(pack_record(RecordType.PAGE, RecordFlags.NONE, key.session_id, key.number, 1, payload))


class CountingDisk(Disk):
    """Remembers direct descriptors, how many reads went into rooms, and makes them slow."""

    def __init__(self, seconds_per_byte: float = 0.0, *, direct: bool = True) -> None:
        self.n_direct = self.n_reads = self.n_bytes = 0
        self.seconds_per_byte = seconds_per_byte
        self._direct: set[int] = set()
        self._allows_direct = direct

    def open_direct(self, path: Path) -> int | None:
        """See Disk."""
        descriptor = super().open_direct(path) if self._allows_direct else None
        self._direct |= {descriptor} if descriptor is not None else set()
        return descriptor

    def read_into(self, descriptor: int, parts: Sequence[memoryview], offset: int, n_wanted: int) -> int:
        """See Disk."""
        n_read = super().read_into(descriptor, parts, offset, n_wanted)
        self.n_direct += descriptor in self._direct
        self.n_reads += 1
        self.n_bytes += n_read
        time.sleep(n_read * self.seconds_per_byte)
        return n_read


class RemoteFake:
    """A KeepingTier in a dict: what an object store or another machine would be."""

    name = "remote"

    def __init__(self, most_records: int = 1 << 30, seconds_per_byte: float | None = None) -> None:
        self._lock = threading.Lock()
        self._records: dict[PageKey, bytes] = {}
        self._pinned: set[PageKey] = set()
        self._most = most_records
        self._pace = seconds_per_byte
        self.n_gets = 0

    def get(self, keys: Sequence[PageKey], rooms: Sequence[memoryview]) -> list[memoryview | RecordDamaged | None]:
        """See Tier."""
        answers: list[memoryview | RecordDamaged | None] = []
        with self._lock:
            self.n_gets += len(keys)
            for key, room in zip(keys, rooms, strict=True):
                record = self._records.get(key)
                place = None if record is None else room[record_start(key) : record_start(key) + len(record)]
                if place is not None and record is not None:
                    place[:] = record
                answers.append(place)
        return answers

    def estimate_seconds(self, keys: Sequence[PageKey]) -> float | None:
        """See Tier."""
        n_bytes = sum(record_bytes(key.location.length) for key in keys)
        return None if self._pace is None else n_bytes * self._pace

    def size_bytes(self) -> int:
        """See Tier."""
        with self._lock:
            return sum(map(len, self._records.values()))

    def put(self, key: PageKey, record: bytes | memoryview) -> bool:
        """See KeepingTier."""
        with self._lock:
            if key not in self._records and len(self._records) >= self._most:
                oldest = next((each for each in self._records if each not in self._pinned), None)
                if oldest is None:
                    return False
                del self._records[oldest]
            self._records[key] = bytes(record)
            return True

    def drop(self, keys: Sequence[PageKey]) -> int:
        """See KeepingTier."""
        with self._lock:
            self._pinned -= set(keys)
            return sum(self._records.pop(key, None) is not None for key in keys)

    def pin(self, keys: Sequence[PageKey]) -> None:
        """See KeepingTier."""
        with self._lock:
            pinned = self._pinned | {key for key in keys if key in self._records}
            if len(pinned) > self._most // 2:
                raise InputError("pages to pin", len(pinned), f"{self._most // 2} can be pinned")
            self._pinned = pinned

    def unpin(self, keys: Sequence[PageKey]) -> None:
        """See KeepingTier."""
        with self._lock:
            self._pinned -= set(keys)
