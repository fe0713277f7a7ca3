"""Paths that no system takes, and paths that mean a store in other words."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv.errors import StoreError
from livingkv.store import BEFORE_MIGRATION, MIGRATING, Store, erase_store, require_place, what_erasing_takes
from tests.store.store_cases import FINGERPRINT, new_store, read_store


@pytest.mark.parametrize("name", ["a" * 300, "nul\0inside"])
def test_paths_that_cannot_be(folder: Path, name: str) -> None:
    for act in (read_store, new_store, require_place, what_erasing_takes, erase_store, Store.rebuild_catalog):
        with pytest.raises(StoreError):
            act(folder / name)


def test_a_store_is_erased_under_any_name_of_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, inside in ((".", True), ("s/../s", False), ("../s", True)):
        new_store(folder / "s").close()
        monkeypatch.chdir(folder / "s" if inside else folder)
        assert erase_store(name).paths == (str(folder / "s"),)
        monkeypatch.chdir(folder)
        assert not (folder / "s").exists()


def test_nothing_is_made_where_a_migration_left_a_gap(folder: Path) -> None:
    for suffix in (BEFORE_MIGRATION, MIGRATING):
        new_store(folder / f"s{suffix}").close()
    with pytest.raises(StoreError, match="mv"):
        read_store(folder / "s")
    with pytest.raises(StoreError, match="mv"):
        Store.open(folder / "s", mode="write", fingerprint=FINGERPRINT, create=True)
    with pytest.raises(StoreError, match="mv"):
        what_erasing_takes(folder / "s")
    assert not (folder / "s").exists()


def test_a_working_folder_that_is_gone_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    with pytest.raises(StoreError):
        erase_store(".")
    with pytest.raises(StoreError):
        read_store(Path("s"))
