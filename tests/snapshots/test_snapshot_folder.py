"""The files of a folder: what goes first, what is forgotten, what dead and other processes do to it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv.store.disk import Disk
from tests.snapshots.small import KEY, cache_of, files, opened


def test_the_disk_keeps_what_was_used_last(tmp_path: Path) -> None:
    opened(tmp_path / "a").take([0] * 4, cache_of(4))
    size = files(tmp_path / "a")[0].stat().st_size
    snapshots = opened(tmp_path / "b", ram=0, disk_bytes=2 * size)
    for tokens in ([1] * 4, [2] * 4):
        snapshots.take(tokens, cache_of(4))
    for path in files(tmp_path / "b"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))
    assert snapshots.longest([1] * 4 + [0])
    snapshots.take([3] * 4, cache_of(4))
    assert [snapshots.longest([one] * 4 + [0]) is not None for one in (1, 2, 3)] == [True, False, True]
    assert snapshots.counts().disk_bytes <= 2 * size and snapshots.counts().n_evicted_from_disk == 1
    assert "more than the budget" in str(snapshots.take([5] * 90, cache_of(90)).reason)
    assert len(files(tmp_path / "b")) == 2


def test_a_user_is_forgotten_whatever_the_model(tmp_path: Path) -> None:
    other = opened(tmp_path, key=replace(KEY, model="older"))
    other.take([1, 2], cache_of(2), user="ann")
    snapshots = opened(tmp_path)
    snapshots.take([1, 2], cache_of(2), user="ann")
    snapshots.take([1, 2], cache_of(2), user="bob")
    assert snapshots.forget("ann") == 2
    assert snapshots.longest([1, 2, 3], user="ann") is None and snapshots.longest([1, 2, 3], user="bob") is not None
    assert snapshots.forget() == 1 and files(tmp_path) == []


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "x.safetensors.1.draft", tmp_path / "y.safetensors.2.draft"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    opened(tmp_path)
    assert files(tmp_path) == [new]


def test_a_state_that_fits_without_its_header_alone_is_not_on_disk(tmp_path: Path) -> None:
    cache = cache_of(4)
    n_bytes = opened(None).take([1] * 4, cache).n_bytes
    taken = opened(tmp_path, ram=0, disk_bytes=n_bytes).take([1] * 4, cache)
    assert not taken.on_disk and "more than the budget" in str(taken.reason) and files(tmp_path) == []


class DyingDisk(Disk):
    """As if the process ended before the rename: nothing is cleaned up."""

    def rename(self, old: Path, new: Path) -> None:
        raise KeyboardInterrupt

    def remove(self, path: Path) -> None:
        raise OSError(errno.EIO, "the process is dead")


def test_what_writing_broke_off_is_forgotten_too(tmp_path: Path) -> None:
    for user in ("ann", "bob"):
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path, disk=DyingDisk()).take([1, 2], cache_of(2), user=user)
    assert [path.suffix for path in files(tmp_path)] == [".draft"] * 2
    assert opened(tmp_path).forget("ann") == 0 and len(files(tmp_path)) == 1
    assert opened(tmp_path).forget() == 0 and files(tmp_path) == []


def test_what_writing_broke_off_makes_room_and_what_is_being_written_stays(tmp_path: Path) -> None:
    for tokens in ([1, 2], [3, 4]):
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path, disk=DyingDisk()).take(tokens, cache_of(2))
    _, held = files(tmp_path)
    with held.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert opened(tmp_path).take([5, 6], cache_of(2)).on_disk
        assert held.exists() and [path.suffix for path in files(tmp_path)].count(".draft") == 1
    opened(tmp_path).take([7, 8], cache_of(2))
    assert [path.suffix for path in files(tmp_path)] == [".safetensors"] * 2


class SharedDisk(Disk):
    """Another process removes a snapshot before it is opened, or while it is read."""

    def __init__(self, folder: Path, *, before: bool) -> None:
        self.folder, self.before = folder, before

    def open_existing(self, path: Path, *, writable: bool) -> int:
        if self.before:
            path.unlink()
        return super().open_existing(path, writable=writable)

    def read_into(self, descriptor: int, parts: Sequence[memoryview], offset: int, n_wanted: int) -> int:
        for path in files(self.folder):
            path.unlink()
        return super().read_into(descriptor, parts, offset, n_wanted)


@pytest.mark.parametrize("before", [True, False])
def test_a_file_that_another_process_removes_stays_away(tmp_path: Path, before: bool) -> None:
    opened(tmp_path).take([1, 2], cache_of(2))
    snapshots = opened(tmp_path, disk=SharedDisk(tmp_path, before=before))
    assert (snapshots.longest([1, 2, 3]) is None) == before
    assert files(tmp_path) == [] and snapshots.counts().n_refused == 0


def test_a_draft_that_goes_away_while_the_folder_is_opened(tmp_path: Path) -> None:
    (tmp_path / "x.draft").symlink_to(tmp_path / "gone")
    assert opened(tmp_path).longest([1, 2]) is None
