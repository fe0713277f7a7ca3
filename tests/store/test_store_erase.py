"""A store erased as a whole: nothing of it is left, and an erasing that broke off is finished by the next."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from livingkv.errors import RecordDamaged, StoreError, StoreHalfErased, StoreLocked, StoreNotFound, StoreUnwritable
from livingkv.store import Disk, Step, Store, erase_store, what_erasing_takes
from tests.store.faulty_disk import FailingDisk
from tests.store.store_cases import filled_store, new_store, read_store, write_store


class Broken(Exception):
    """The process died here."""


class BreakingDisk(Disk):
    """Breaks off at one moment, counted from 0 on."""

    def __init__(self, at: int) -> None:
        self.left = at

    def reached(self, step: Step) -> None:
        self.left -= 1
        if self.left < 0:
            raise Broken(step)


def pruned_store(root: Path) -> None:
    """A store with an archive, an index of some kind, and two segments at least."""
    filled_store(root, segment_bytes=600)
    with write_store(root, segment_bytes=600) as store:
        store.prune(keep=4)
    (root / "index" / "deep").mkdir(parents=True)
    (root / "index" / "deep" / "words").write_bytes(b"words")


def test_nothing_is_left_and_the_receipt_counts(folder: Path) -> None:
    root = folder / "store"
    pruned_store(root)
    (folder / "neighbour").write_text("stays")
    with read_store(root) as store:
        stats, archived = store.stats(), store.archived()
    before = what_erasing_takes(root)
    receipt = erase_store(root)
    assert sorted(path.name for path in folder.iterdir()) == ["neighbour"]
    assert (receipt.n_sessions, receipt.n_sentences, receipt.n_tokens) == (1, 4, stats.n_tokens)
    assert (receipt.n_pages, receipt.n_archived, receipt.n_bytes) == (stats.n_pages, len(archived), stats.n_bytes)
    assert receipt.size_bytes == before.size_bytes >= receipt.bytes_overwritten > 0
    assert (receipt.paths, receipt.left) == ((str(root),), ())
    with pytest.raises(StoreNotFound):
        erase_store(root)
    new_store(root).close()


def test_the_bytes_are_zeros_when_the_name_goes(folder: Path) -> None:
    root = folder / "store"
    pruned_store(root)
    for number, path in enumerate(path for path in root.rglob("*") if path.is_file()):
        (folder / f"link{number}").hardlink_to(path)
    erase_store(root)
    links = {path: path.read_bytes() for path in folder.glob("link*")}
    assert len(links) > 6 and sum(map(len, links.values())) > 1000
    assert [path for path, data in links.items() if data.strip(b"\0")] == []


def test_links_are_not_followed(folder: Path) -> None:
    pruned_store(folder / "store")
    (folder / "outside").mkdir()
    (folder / "outside" / "letter").write_text("stays")
    (folder / "store" / "index" / "link").symlink_to(folder / "outside")
    (folder / "store" / "segments" / "link").symlink_to(folder / "outside" / "letter")
    (folder / "alias").symlink_to(folder / "store")
    with pytest.raises(StoreUnwritable, match="is a link"):
        erase_store(folder / "alias")
    erase_store(folder / "store")
    assert (folder / "outside" / "letter").read_text() == "stays"
    assert not (folder / "store").exists()


def test_what_is_not_a_stores_stays(folder: Path) -> None:
    pruned_store(folder / "store")
    (folder / "store" / "mine.lkvx").write_text("an export")
    assert erase_store(folder / "store").left == (str(folder / "store" / "mine.lkvx"),)
    assert [path.name for path in (folder / "store").iterdir()] == ["mine.lkvx"]
    (folder / "empty").mkdir()
    for name in ("none", "empty", "store", "store/mine.lkvx"):
        with pytest.raises(StoreNotFound):
            erase_store(folder / name)


def test_refused_while_a_writer_has_it(folder: Path) -> None:
    pruned_store(folder / "store")
    with write_store(folder / "store"), pytest.raises(StoreLocked):
        erase_store(folder / "store")
    with read_store(folder / "store") as store:
        with pytest.raises(StoreLocked, match="open in this process"):
            erase_store(folder / "store")
        assert store.check().ok
    erase_store(folder / "store")


def test_copies_of_a_migration_go_too(folder: Path) -> None:
    root = folder / "store"
    pruned_store(root)
    old, new = folder / "store.before-migration", folder / "store.migrating"
    shutil.copytree(root, old)
    (new / "export-1").mkdir(parents=True)
    (new / "export-1" / "session").write_bytes(b"text")
    with write_store(old), pytest.raises(StoreLocked):
        erase_store(root)
    with read_store(root) as store:
        assert store.check().ok
    assert erase_store(root).paths == (str(old), str(new), str(root))
    assert list(folder.iterdir()) == []
    (folder / "store.migrating").mkdir()
    (folder / "store.migrating" / "mine").touch()
    with pytest.raises(StoreNotFound):
        erase_store(root)


@pytest.mark.parametrize("what", ["catalog", "manifest.json", "format", "archive"])
def test_a_damaged_store_goes_too(folder: Path, what: str) -> None:
    root = folder / "store"
    pruned_store(root)
    if what == "catalog":
        shutil.rmtree(root / "catalog")
    elif what == "archive":
        (root / "archive" / "sentences.jsonl").write_text("damaged")
    else:
        (root / "manifest.json").write_text('{"format": 99}' if what == "format" else "{")
    receipt = erase_store(root)
    assert receipt.n_sentences == (4 if what == "archive" else None) and receipt.n_archived is None
    assert list(folder.iterdir()) == []


def test_broken_off_anywhere_the_next_call_finishes(folder: Path) -> None:
    pruned_store(folder / "whole")
    shutil.copytree(folder / "whole", folder / "whole.before-migration")
    whole = what_erasing_takes(folder / "whole")
    for at in range(100):
        place = folder / str(at)
        shutil.copytree(folder / "whole", place / "store")
        shutil.copytree(folder / "whole", place / "store.before-migration")
        try:
            erase_store(place / "store", disk=BreakingDisk(at))
        except Broken as broken:
            if (place / "store" / "manifest.json").exists() or (place / "store" / "erasing.json").exists():
                for mode in ("read", "write"):
                    with pytest.raises(StoreHalfErased, match="livingkv erase"):
                        Store.open(place / "store", mode=mode).close()
                with pytest.raises(StoreHalfErased):
                    Store.rebuild_catalog(place / "store")
                receipt = erase_store(place / "store")
                assert (receipt.n_sentences, receipt.n_tokens) == (whole.n_sentences, whole.n_tokens)
                assert receipt.size_bytes == whole.size_bytes
            else:
                assert broken.args[0] in (Step.FILE_ERASED, Step.MARK_REMOVED)
                (place / "store").rmdir()
        else:
            assert at > 20
            return
        assert list(place.iterdir()) == []
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_every_operation_may_fail(folder: Path, number: int) -> None:
    pruned_store(folder / "whole")
    for fail_at in range(100):
        root = folder / str(fail_at)
        shutil.copytree(folder / "whole", root)
        disk = FailingDisk()
        disk.arm(fail_at, number, lasting=False)
        try:
            erase_store(root, disk=disk)
        except StoreError as error:
            assert "\n" not in str(error)
            if root.exists() and any(root.iterdir()):
                erase_store(root)
        assert not root.exists() or not any(root.iterdir())
        if disk.n_operations <= fail_at:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.slow  # another process
def test_a_reader_gets_a_clear_error(folder: Path) -> None:
    root = folder / "store"
    pruned_store(root)
    code = (
        "import sys; from livingkv.store import Store; from livingkv.errors import StoreError\n"
        "store = Store.open(sys.argv[1], mode='read'); print('open', flush=True); sys.stdin.readline()\n"
        "for read in (store.sessions, lambda: store.text(1), lambda: store.read_pages(1, [0]), store.stats):\n"
        "    try: print(read())\n"
        "    except StoreError as error: print(type(error).__name__)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    erase_store(root)
    output, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert len(output.splitlines()) == 4 and all("Damaged" in line or "Error" in line for line in output.splitlines())


def test_a_file_that_may_not_be_written_is_named(folder: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    pruned_store(folder / "store")
    (folder / "store" / "manifest.json").chmod(0o400)
    with pytest.raises(StoreUnwritable, match="permissions"):
        erase_store(folder / "store")
    with pytest.raises((StoreHalfErased, RecordDamaged)):
        read_store(folder / "store")
    (folder / "store" / "manifest.json").chmod(0o600)
    erase_store(folder / "store")
