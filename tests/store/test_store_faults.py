"""A disk that is full, fails, or may not be written: the session is unchanged, and the next append works."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from livingkv.errors import PageDamaged, StoreError, StoreFull, StoreUnwritable
from livingkv.store import Disk, Step
from livingkv.store.disk import store_error
from tests.store.faulty_disk import DiesAt, FailingDisk
from tests.store.other_process import run
from tests.store.store_cases import (
    assert_session,
    assert_whole,
    filled_store,
    make_append,
    new_store,
    read_store,
    write_store,
)

KINDS = {errno.ENOSPC: StoreFull, errno.EDQUOT: StoreFull, errno.EIO: StoreError, errno.EROFS: StoreUnwritable}


@pytest.mark.parametrize("number", KINDS)
@pytest.mark.parametrize("lasting", [False, True])
def test_every_operation_of_an_append_may_fail(folder: Path, number: int, lasting: bool) -> None:
    rng = random.Random(4)
    model = filled_store(folder / "store", segment_bytes=600)
    disk = FailingDisk()
    with write_store(folder / "store", disk=disk, segment_bytes=600) as store:
        n_failed = 0
        for fail_at in range(40):
            append = make_append(model, rng, n_tokens=13)  # rolls over to a new segment each time
            disk.arm(fail_at, number, lasting=lasting)
            try:
                store.append(append)
            except StoreError as error:
                assert type(error) is KINDS[number]
                assert "\n" not in str(error)
                assert isinstance(error.__cause__, OSError)
                n_failed += 1
                disk.arm(None, 0, lasting=False)
                assert_session(store, model)
                store.append(append)  # space is back
            model = model.applied(append)
            assert_session(store, model)
        assert n_failed >= 5
        disk.arm(None, 0, lasting=False)
        assert_whole(store)
    with write_store(folder / "store") as store:
        assert_session(store, model)
        assert_whole(store)


def test_every_operation_of_a_making_may_fail(folder: Path) -> None:
    for fail_at in range(12):
        disk = FailingDisk()
        disk.arm(fail_at, errno.ENOSPC, lasting=False)
        root = folder / str(fail_at)
        try:
            new_store(root, disk=disk).close()
        except StoreFull:
            new_store(root).close()
        with write_store(root) as store:
            assert_whole(store)
    assert fail_at > disk.n_operations - 1, "more operations to fail than were tried"


def test_an_interrupt_during_a_commit_leaves_the_store_as_it_was(folder: Path) -> None:
    model, disk = filled_store(folder / "store"), DiesAt()
    with write_store(folder / "store", disk=disk) as store, read_store(folder / "store") as reader:
        append = make_append(model, random.Random(1), n_tokens=9)
        disk.step = Step.COMMIT_PREPARED
        with pytest.raises(KeyboardInterrupt):
            store.append(append)
        assert_session(store, model)
        assert_whole(store)
        store.append(append)
        assert_session(reader, model.applied(append))


def test_short_writes_and_reads_are_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, pwritev = os.pread, os.pwritev
    monkeypatch.setattr(os, "pread", lambda fd, n, offset: pread(fd, min(n, 7), offset))
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, offset: pwritev(fd, [bytes(parts[0][:11])], offset))
    model = filled_store(folder / "store")
    with read_store(folder / "store") as store:
        assert_session(store, model)


def test_a_write_that_writes_nothing_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = filled_store(folder / "store")
    with write_store(folder / "store") as store:
        append = make_append(model, random.Random(1), n_tokens=9)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", lambda *_: 0)
            with pytest.raises(StoreError):
                store.append(append)
        store.append(append)
        assert_session(store, model.applied(append))


class UnreadableDisk(Disk):
    """Fails to read segments while `is_broken`."""

    is_broken = False

    def read(self, descriptor: int, n_bytes: int, offset: int) -> bytes:
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(descriptor, n_bytes, offset)


def test_a_page_that_cannot_be_read_is_damaged(folder: Path) -> None:
    model, disk = filled_store(folder / "store"), UnreadableDisk()
    with read_store(folder / "store", disk=disk) as store:
        disk.is_broken = True
        with pytest.raises(PageDamaged, match="Input/output error") as caught:
            store.read_pages(1, [2])
        assert (caught.value.session_id, caught.value.page) == (1, 2)
        assert any("cannot be read" in problem for problem in store.check().problems)
        disk.is_broken = False
        assert_session(store, model)


def test_errors_of_the_system_say_what_to_do() -> None:
    for number, kind in (
        (errno.ENOSPC, StoreFull),
        (errno.EFBIG, StoreFull),
        (errno.EACCES, StoreUnwritable),
        (errno.EPERM, StoreUnwritable),
        (errno.EIO, StoreError),
    ):
        error = store_error(OSError(number, os.strerror(number)), Path("/store"))
        assert type(error) is kind
        assert "/store" in str(error)


FULL_CATALOG = """
import random, resource, sys
from pathlib import Path
from livingkv.errors import StoreFull
from tests.store.store_cases import *
root = Path(sys.argv[1])
model = filled_store(root)
rng = random.Random(1)
with write_store(root) as store:
    limit = (root / "catalog" / "data.mdb").stat().st_size + 100_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    n_failed = 0
    for number in range(30):
        append = make_append(model, rng, n_tokens=13, page_bytes=9_000)
        try:
            store.append(append)
            model = model.applied(append)
        except StoreFull as error:
            n_failed += 1
            assert_session(store, model)
    assert n_failed, "the catalog never became full"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    model = grown(store, model, rng, n_tokens=13, page_bytes=9_000)
    assert_session(store, model)
    assert_whole(store)
"""


@pytest.mark.slow
def test_a_catalog_without_disk_space(folder: Path) -> None:
    """LMDB's own writes hit a size limit, in a process of its own."""
    run("-c", FULL_CATALOG, folder / "store")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(folder: Path) -> None:
    model = filled_store(folder / "store")
    paths = [folder / "store", *(folder / "store").rglob("*")]
    for path in paths:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        with pytest.raises(StoreUnwritable):
            write_store(folder / "store")
        with pytest.raises(StoreUnwritable):
            new_store(folder / "store" / "segments" / "deeper")
    finally:
        for path in paths:
            path.chmod(0o700 if path.is_dir() else 0o600)
    with write_store(folder / "store") as store:
        assert_session(store, model)


def test_an_unwritable_path_by_an_injected_error(folder: Path) -> None:
    disk = FailingDisk()
    disk.arm(0, errno.EACCES, lasting=True)
    with pytest.raises(StoreUnwritable, match="permission"):
        new_store(folder / "store", disk=disk)
