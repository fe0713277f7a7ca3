"""Pages through the tiers: the store's own answers, read once, verified, evicted without loss."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from livingkv.errors import InputError, RecordDamaged, SessionNotFound, StoreError
from livingkv.tiers import PageKey, RamTier, TieredPages, budget_for, open_pages
from tests.store.store_cases import read_store, write_store
from tests.tiers.tier_cases import (
    PAGE_BYTES,
    ROOM,
    CountingDisk,
    RemoteFake,
    opened,
    paged_store,
)


def forget_cache(path: Path) -> None:
    for file in (path / "segments").glob("*.seg"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("direct", [True, False])
def test_pages_are_those_of_the_store(folder: Path, cold: bool, direct: bool) -> None:
    model = paged_store(folder, 21)
    disk = CountingDisk(direct=direct)
    with opened(folder, 12, disk=disk) as (_, pages):
        if cold:
            forget_cache(folder)
        asked = [3, 4, 5, 20, 0, 3, 7, 9, 10]
        with pages.lease(model.session_id, asked) as views:
            assert [bytes(view) for view in views] == [model.pages[page] for page in asked]
        everything = [*range(21), 2, 1, 0]
        assert [(page, bytes(view)) for page, view in pages.stream(model.session_id, everything)] == [
            (page, model.pages[page]) for page in everything
        ]
        pages.check()
        assert disk.n_direct == 0 or (direct and cold)


def test_small_pages_of_many_in_a_block(folder: Path) -> None:
    model = paged_store(folder, 60, page_bytes=333)
    with read_store(folder) as store:
        pages = open_pages(store, page_bytes=333, ram_budget_bytes=40 * budget_for(1, 333))
        asked = random.Random(1).sample(range(60), 30)
        with pages.lease(model.session_id, asked) as views:
            assert [bytes(view) for view in views] == [model.pages[page] for page in asked]
        pages.close()


def test_second_reading_comes_from_memory(folder: Path) -> None:
    model = paged_store(folder, 8)
    disk = CountingDisk()
    with opened(folder, disk=disk) as (_, pages):
        for _ in range(3):
            with pages.lease(model.session_id, range(6)) as views:
                assert [bytes(view) for view in views] == model.pages[:6]
        counts = pages.counts()
        assert (counts.ram.n_hits, counts.ram.n_misses, counts.lower[0].n_pages) == (12, 6, 6)
        assert counts.lower[0].n_bytes <= disk.n_bytes <= counts.lower[0].n_bytes * 1.1


def test_nothing_is_lost_by_eviction_right_after_a_commit(folder: Path) -> None:
    model = paged_store(folder, 12)
    with write_store(folder) as store:
        pages = open_pages(store, page_bytes=PAGE_BYTES, ram_budget_bytes=4 * ROOM)
        for _ in range(2):
            found = [bytes(view) for _, view in pages.stream(model.session_id, range(12))]
            assert found == model.pages
        assert pages.counts().ram.n_evicted >= 16
        assert pages.counts().ram.size_bytes <= 4 * ROOM
        pages.close()


def test_one_page_wanted_by_many_is_read_once(folder: Path) -> None:
    model = paged_store(folder, 4)
    disk = CountingDisk(2e-7)
    with opened(folder, disk=disk) as (_, pages):
        found: list[bytes] = []

        def read() -> None:
            with pages.lease(model.session_id, [1]) as views:
                found.append(bytes(views[0]))

        threads = [threading.Thread(target=read) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [model.pages[1]] * 20
        assert disk.n_reads == 1


def test_unknown_pages_and_sessions_are_named(folder: Path) -> None:
    model = paged_store(folder, 3)
    with opened(folder) as (_, pages):
        with pytest.raises(InputError, match="page"), pages.lease(model.session_id, [3]):
            pass
        with pytest.raises(SessionNotFound):
            list(pages.stream(99, [0]))


def test_prefetch_reads_before_it_is_asked(folder: Path) -> None:
    model = paged_store(folder, 8)
    disk = CountingDisk()
    with opened(folder, disk=disk) as (_, pages):
        assert pages.prefetch(model.session_id, range(6)) == 6
        with pages.lease(model.session_id, range(6)) as views:
            assert [bytes(view) for view in views] == model.pages[:6]
        assert pages.counts().ram.n_misses == 6
        assert pages.counts().lower[0].n_pages == 6
        with pages.lease(model.session_id, range(7)):
            assert pages.prefetch(model.session_id, [7, 6]) == 2
            assert pages.prefetch(model.session_id, [0, 7]) == 2
        pages._reading.close()
        pages.check()


def test_pinned_pages_stay_and_dropped_ones_go(folder: Path) -> None:
    model = paged_store(folder, 12)
    disk = CountingDisk()
    with opened(folder, disk=disk) as (_, pages):
        pages.pin(model.session_id, [0, 1])
        for _ in pages.stream(model.session_id, range(12)):
            pass
        n_bytes = disk.n_bytes
        with pages.lease(model.session_id, [1, 0]):
            assert disk.n_bytes == n_bytes
        with pytest.raises(InputError):
            pages.pin(model.session_id, [2, 3, 4])
        pages.unpin(model.session_id, [0, 1, 2, 3, 4])
        assert pages.drop_session(model.session_id) == pages.counts().ram.n_rooms
        assert pages.counts().ram.size_bytes == 0
        pages.check()


def test_abandoned_stream_gives_its_rooms_back(folder: Path) -> None:
    model = paged_store(folder, 12)
    with opened(folder, 4, disk=CountingDisk(1e-7)) as (_, pages):
        for _ in range(5):
            stream = pages.stream(model.session_id, range(12))
            next(stream)
            stream.close()
        with pages.lease(model.session_id, range(4)) as views:
            assert [bytes(view) for view in views] == model.pages[:4]


def test_estimate_follows_the_disk(folder: Path) -> None:
    model = paged_store(folder, 12)
    with opened(folder, 6, disk=CountingDisk(1e-7)) as (_, pages):
        assert pages.estimate_seconds(model.session_id, [5]) is None
        with pages.lease(model.session_id, [0, 1]):
            assert pages.estimate_seconds(model.session_id, [0, 1]) == 0.0
        forecast = pages.estimate_seconds(model.session_id, [0, 1, 2, 3, 4, 5])
        assert forecast is not None
        assert forecast > 4 * PAGE_BYTES * 1e-7
        half = pages.estimate_seconds(model.session_id, [0, 1, 2, 3])
        assert half is not None and 0 < half < forecast


def test_closed_pages_refuse(folder: Path) -> None:
    model = paged_store(folder, 4)
    with opened(folder) as (_, pages):
        with pages.lease(model.session_id, [0]) as views:
            pages.close()
            assert bytes(views[0]) == model.pages[0]
        pages.close()
        with pytest.raises(StoreError, match="closed"), pages.lease(model.session_id, [0]):
            pass


def test_unforeseen_failure_of_a_tier_reaches_the_reader(folder: Path) -> None:
    class Broken(RemoteFake):
        def get(self, keys: Sequence[PageKey], rooms: Sequence[memoryview]) -> list[memoryview | RecordDamaged | None]:
            raise ZeroDivisionError("a bug")

    model = paged_store(folder, 4)
    with (
        read_store(folder) as store,
        TieredPages(store.locate_pages, RamTier(8 * ROOM, PAGE_BYTES), [Broken()]) as pages,
    ):
        with pytest.raises(StoreError, match="a bug"), pages.lease(model.session_id, [0]):
            pass
        pages.check()
