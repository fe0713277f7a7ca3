"""Pages that the disk has lost or damaged: named each time, never kept, had from elsewhere where that is possible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from livingkv.errors import PageDamaged
from livingkv.tiers import RamTier, TieredPages, budget_for, open_pages
from livingkv.tiers.disk_tier import DiskTier
from tests.store.store_cases import read_store
from tests.tiers.tier_cases import PAGE_BYTES, ROOM, RemoteFake, damage_page, opened, paged_store, record_of


def test_damaged_page_raises_each_time_and_never_stays(folder: Path) -> None:
    model = paged_store(folder, 6)
    with opened(folder) as (store, pages):
        damage_page(folder, store, model, 2)
        for _ in range(2):
            with pytest.raises(PageDamaged, match="page 2 of session") as caught, pages.lease(1, [1, 2, 3]):
                pass
            assert (caught.value.session_id, caught.value.page) == (model.session_id, 2)
        assert {key.number for key in pages._ram.held()} == {1, 3}
        read = []
        with pytest.raises(PageDamaged):
            for page, _ in pages.stream(model.session_id, range(6)):
                read.append(page)
        assert read == [0, 1]
        pages.check()


def test_truncated_segment_does_not_pass_for_what_the_room_held_before(folder: Path) -> None:
    model = paged_store(folder, 8)
    with opened(folder, 4) as (store, pages):
        with pages.lease(model.session_id, [1]) as views:
            assert bytes(views[0]) == model.pages[1]
        keys = store.locate_pages(model.session_id, [1])
        entry = pages._ram._entries[keys[0]]
        room = pages._ram.room(entry)
        os.truncate(folder / "segments" / f"{keys[0].location.segment:08d}.seg", keys[0].location.offset + 100)
        answer = DiskTier(store.segments, store.disk).get(keys, [room])[0]
        assert isinstance(answer, memoryview)
        assert len(answer) == 100, "what the file no longer has is not taken from the room"
        pages._ram.drop(keys)
        with pytest.raises(PageDamaged), pages.lease(model.session_id, [1]):
            pass


def test_missing_segment_is_damage(folder: Path) -> None:
    model = paged_store(folder, 3)
    with opened(folder) as (store, pages):
        segment = store.locate_pages(model.session_id, [0])[0].location.segment
        (folder / "segments" / f"{segment:08d}.seg").unlink()
        with pytest.raises(PageDamaged, match="cannot be read"), pages.lease(model.session_id, [0]):
            pass


def test_page_of_another_size_is_refused(folder: Path) -> None:
    model = paged_store(folder, 3)
    with read_store(folder) as store:
        pages = open_pages(store, page_bytes=5000, ram_budget_bytes=10 * budget_for(1, 5000))
        with pytest.raises(PageDamaged, match="not a page of this model"), pages.lease(model.session_id, [0]):
            pass
        pages.check()
        pages.close()


def test_remote_tier_serves_what_the_disk_cannot(folder: Path) -> None:
    model = paged_store(folder, 6)
    remote = RemoteFake()
    with read_store(folder) as store:
        keys = store.locate_pages(model.session_id, range(6))
        for key, payload in zip(keys[:4], model.pages, strict=False):
            remote.put(key, record_of(key, payload))
        remote.put(keys[4], record_of(keys[3], model.pages[3]))  # a remote tier that mixes up pages
        damage_page(folder, store, model, 2)
        damage_page(folder, store, model, 4)
        ram = RamTier(8 * ROOM, PAGE_BYTES)
        with TieredPages(store.locate_pages, ram, [DiskTier(store.segments, store.disk), remote]) as pages:
            with pages.lease(model.session_id, [0, 1, 2, 3]) as views:
                assert [bytes(view) for view in views] == model.pages[:4]
            assert remote.n_gets == 1
            with pytest.raises(PageDamaged), pages.lease(model.session_id, [4]):
                pass
            disk, other = pages.counts().lower
            assert (disk.n_damaged, other.n_pages, other.n_damaged) == (2, 1, 1)
