"""Pipes, sockets and devices in the place of a store's files: one line that names them, at once, and nothing hangs."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from livingkv.errors import RecordDamaged, StoreError
from livingkv.store import Store, erase_store, what_erasing_takes
from livingkv.store.migrating import stored_version
from tests.store.damage import LOG_SEGMENT, segment
from tests.store.store_cases import FINGERPRINT, filled_store, new_store, read_store, write_store

pytestmark = pytest.mark.timeout(20)
SAYS = "pipe, socket or device"


def make_pipe(path: Path) -> None:
    """A pipe that nobody writes to."""
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    """A socket that nobody listens at."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def link_device(path: Path) -> None:
    """A link to a device that has no end."""
    path.symlink_to("/dev/zero")


KINDS = [make_pipe, make_socket, link_device]


def used(root: Path) -> list[str]:
    """What each use of a store says, for those that fail."""
    lines = []
    for use in (_read, _check, _write, _rebuild, what_erasing_takes):
        try:
            use(root)
        except StoreError as error:
            lines.append(str(error))
    return lines


def _read(root: Path) -> None:
    with read_store(root) as store:
        store.text(1)
        store.archived()
        store.stats()


def _check(root: Path) -> None:
    with read_store(root) as store:
        problems = store.check().problems
    if problems:
        raise StoreError(problems[0])


def _write(root: Path) -> None:
    with write_store(root) as store:
        store.prune(1, keep=3)


def _rebuild(root: Path) -> None:
    Store.rebuild_catalog(root, catalog_bytes=1 << 24)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    "name", ["manifest.json", "lock", "catalog/data.mdb", "catalog/lock.mdb", "segments/00000001.seg", "archive"]
)
def test_a_special_file_in_the_place_of_a_file(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    root = folder / "s"
    filled_store(root)
    with write_store(root) as store:
        store.prune(1, keep=4)
    path = root / (name if name != "archive" else "archive/sentences.jsonl")
    path.unlink()
    make(path)
    lines = used(root)
    if name == "catalog/data.mdb":
        assert all("lost its catalog" in line for line in lines)
        with read_store(root) as store:  # the rebuilding among the uses has put it right
            assert store.sessions()
    else:
        assert any(SAYS in line for line in lines)
    assert lines and all("\n" not in line for line in lines)
    if name == "lock":
        with pytest.raises(StoreError, match=SAYS):
            erase_store(root)
        path.unlink()
    erase_store(root)
    assert not root.exists()


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", ["manifest.json.tmp", "archive/sentences.jsonl.tmp", "erasing.json.tmp"])
def test_a_special_file_in_the_place_of_a_draft(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    root = folder / "s"
    filled_store(root)
    (root / "archive").mkdir(exist_ok=True)
    make(root / name)
    assert all(SAYS in line or "nothing has to be rebuilt" in line for line in used(root))
    if name.startswith("erasing"):
        with pytest.raises(StoreError, match=SAYS):
            erase_store(root)
        (root / name).unlink()
    erase_store(root)
    assert not root.exists()


@pytest.mark.parametrize("make", KINDS)
def test_a_mark_of_erasing_that_is_no_file_counts_nothing(folder: Path, make: Callable[[Path], None]) -> None:
    filled_store(folder / "s")
    make(folder / "s" / "erasing.json")
    assert what_erasing_takes(folder / "s").n_sessions is None
    erase_store(folder / "s")
    assert not (folder / "s").exists()


@pytest.mark.parametrize("make", KINDS)
def test_a_key_that_is_no_file_locks_its_session_only(folder: Path, make: Callable[[Path], None]) -> None:
    root = folder / "s"
    with new_store(root) as store:
        store.create_session("diary", encrypt=True)
        store.create_session("plain")
    (key,) = (root / "keys").iterdir()
    key.unlink()
    make(key)
    with write_store(root) as store:
        assert not store.has_key(1)
        assert any(SAYS in problem for problem in store.check().problems)
        store.forget_session(1)
        assert [row.name for row in store.sessions()] == ["plain"] and not list((root / "keys").iterdir())


def test_a_segment_that_is_a_pipe_is_damage(folder: Path) -> None:
    filled_store(folder / "s")
    path = segment(folder / "s", LOG_SEGMENT)
    path.unlink()
    make_pipe(path)
    with read_store(folder / "s") as store, pytest.raises(RecordDamaged, match=SAYS):
        store.text(1)


def test_a_store_cannot_be_made_around_a_special_file(folder: Path) -> None:
    for name in ("lock", "manifest.json", "catalog/data.mdb"):
        root = folder / "s"
        (root / "catalog").mkdir(parents=True)
        make_pipe(root / name)
        with pytest.raises(StoreError, match=SAYS):
            new_store(root)
        with pytest.raises(StoreError):
            Store.open(root, mode="read", fingerprint=FINGERPRINT)
        shutil.rmtree(root)


def test_the_version_of_a_pipe(folder: Path) -> None:
    make_pipe(folder / "manifest.json")
    with pytest.raises(StoreError, match=SAYS):
        stored_version(folder)
