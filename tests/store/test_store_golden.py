"""Stores of every released format open forever, and the way from one format to the next."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from livingkv.errors import FormatUnsupported, RecordDamaged, StoreError, StoreNotFound
from livingkv.store import migrating
from tests.data.make_v1 import facts
from tests.store.store_cases import (
    SessionModel,
    assert_whole,
    filled_store,
    make_append,
    read_store,
    rebuild,
    write_store,
)

GOLDEN = Path(__file__).parents[1] / "data" / "v1"


@pytest.fixture
def golden(folder: Path) -> Path:
    """A copy of the golden store: opening one writes to its lock."""
    shutil.copytree(GOLDEN, folder / "v1")
    return folder / "v1" / "store"


def expected() -> object:
    """What the golden store must hold."""
    return json.loads((GOLDEN / "facts.json").read_text())


def test_the_golden_store_holds_what_it_held(golden: Path) -> None:
    with read_store(golden) as store:
        assert facts(store) == expected()
        assert_whole(store)
        assert len(store.hottest(5)) == 1
    with write_store(golden) as store:
        assert facts(store) == expected()
        row = store.session("log")
        model = SessionModel(row.session_id, "log", [0] * row.n_tokens, store.text(row.session_id), pages=[b""] * 9)
        store.append(make_append(model, random.Random(1), n_tokens=9))
        store.defrag(least_dead=0.0)
        assert_whole(store)


def test_the_golden_catalog_can_be_rebuilt(golden: Path) -> None:
    rebuild(golden)
    with read_store(golden) as store:
        for found, was in zip(facts(store), json.loads((GOLDEN / "facts.json").read_text()), strict=True):
            without = {"tail", "flags"}  # tails are not in segments
            assert {key: found[key] for key in found if key not in without} == {
                key: was[key] for key in was if key not in without
            }


def test_the_golden_export_can_be_imported(golden: Path) -> None:
    with write_store(golden) as store:
        row = store.import_session(golden.parent / "renamed.lkv", name="imported")
        origin = store.session("renamed")
        assert store.text(row.session_id) == store.text(origin.session_id)
        assert store.missing_pages(row.session_id) == store.missing_pages(origin.session_id)
        assert_whole(store)


def to_version_2(old: Path, new: Path) -> None:
    """A made-up step: everything as it is, but for the number."""
    shutil.copytree(old, new, dirs_exist_ok=True)
    values = json.loads((new / "manifest.json").read_text())
    (new / "manifest.json").write_text(json.dumps(values | {"format": 2}))


def test_a_migration_swaps_and_keeps_the_old_store(folder: Path) -> None:
    root = folder / "store"
    filled_store(root)
    assert migrating.migrate(root) == []
    with pytest.raises(FormatUnsupported, match="no way"):
        migrating.migrate(root, target=2)
    assert migrating.migrate(root, steps={1: to_version_2}, target=2) == [folder / "store.v1"]
    assert migrating.stored_version(root) == 2
    read_store(folder / "store.v1").close()
    with pytest.raises(FormatUnsupported, match="update livingkv"):
        read_store(root)
    with pytest.raises(FormatUnsupported):
        migrating.migrate(root)
    with pytest.raises(StoreNotFound):
        migrating.migrate(folder / "none")


def test_a_migration_that_breaks_off_changes_nothing(folder: Path) -> None:
    root = folder / "store"
    filled_store(root)

    def fail(old: Path, new: Path) -> None:
        to_version_2(old, new)
        raise KeyboardInterrupt

    def copy(old: Path, new: Path) -> None:
        shutil.copytree(old, new, dirs_exist_ok=True)

    with pytest.raises(KeyboardInterrupt):
        migrating.migrate(root, steps={1: fail}, target=2)
    with read_store(root) as store:
        assert_whole(store)
    with pytest.raises(StoreError, match="did not make"):
        migrating.migrate(root, steps={1: copy}, target=2)
    root.rename(folder / "store.v1")  # killed between the two renames
    shutil.rmtree(folder / "store.migrating")
    to_version_2(folder / "store.v1", folder / "store.migrating")
    assert migrating.migrate(root, steps={1: to_version_2}, target=2) == []
    assert migrating.stored_version(root) == 2
    (root / "manifest.json").write_text("{}")
    with pytest.raises(RecordDamaged):
        migrating.migrate(root)
