"""A migration takes along all that a store keeps of its sessions, and survives its process at every rename."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from livingkv import Memory, Settings
from livingkv.errors import InputError, StoreError
from livingkv.home import Home
from livingkv.migrating import migrate
from livingkv.store import Disk, Store
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow  # each migration reads text through a model

MODEL = tiny_model()
LOSSLESS = Settings.from_dict({"codec": "lossless"})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three sessions: one pinned, one pruned, one encrypted and pruned."""
    with Memory.open(tmp_path / "s", model=MODEL) as memory:
        memory.ingest("a", text=b"Ada is here. She stays.", session="kept")
        memory.pin("kept")
        memory.ingest("b", text=b"One went. Two stayed. Three came.", session="log")
        memory.ingest("c", text=b"Nobody reads this. Nor that.", session="diary", encrypt=True)
        memory.prune(session="log", keep=1)
        memory.prune(session="diary", keep=1)
    return tmp_path / "s"


def archived(path: Path) -> list[tuple[str, str, str]]:
    """What the archive holds."""
    with Memory.open(path, read_only=True) as memory:
        return [(each.session, each.source, each.text) for each in memory.archived()]


def test_pins_and_the_archive_come_along(store: Path) -> None:
    before = archived(store)
    assert len(before) == 3
    migrate(store, model=MODEL, settings=LOSSLESS)
    assert archived(store) == before
    lines = (store / "archive" / "sentences.jsonl").read_bytes()
    assert b"One went" in lines and b"Nobody reads" not in lines
    with Store.open(store, mode="read") as opened:
        assert {row.name for row in opened.sessions() if row.pinned} == {"kept"}
    with Memory.open(store, model=MODEL) as memory:
        memory.ingest("b", text=b"Four is new. Five is newer.", session="log")
        memory.prune(session="log", keep=0)
        texts = [each.text for each in memory.archived(session="log")]
        assert {"One went.", "Four is new."} <= {text.strip() for text in texts}, "no id is given out twice"
        memory.restore(of="log")
        assert b"Four is new." in memory.text("log") and b"One went." in memory.text("log")
        assert memory.check().problems == ()


def test_a_migration_that_broke_off_between_its_renames_is_finished(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_only(self: Disk, old: Path, new: Path) -> None:
        old.replace(new)
        if new.name.endswith(".before-migration"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "rename", first_only)
        with pytest.raises(KeyboardInterrupt):
            migrate(store, model=MODEL, settings=LOSSLESS)
    assert not store.exists()
    for create in (False, True):
        with pytest.raises(StoreError, match="finish it with `mv"):
            Memory.open(store, model=MODEL, create=create)
    with pytest.raises(InputError, match="earlier migration"):
        migrate(store, model=MODEL, settings=LOSSLESS)
    with Memory.open(store, read_only=True) as memory:
        assert memory.text("kept") == b"Ada is here. She stays." and memory.stats().codec == "lossless"


def test_what_is_written_meanwhile_is_not_lost(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old store is open for writing only as long as it is read; whoever comes after that is seen."""
    real = Memory.open
    from livingkv import migrating

    def copy_then_write(*arguments: Any) -> int:
        n_tokens = copied(*arguments)
        monkeypatch.setattr(Home, "close", close_and_write)
        return n_tokens

    def close_and_write(home: Home) -> None:
        monkeypatch.setattr(Home, "close", closed)
        home.close()
        with real(store, model=MODEL) as memory:
            memory.ingest("late", text=b"Do not lose me.", session="late")

    copied, closed = migrating._copy_sessions, Home.close
    monkeypatch.setattr(migrating, "_copy_sessions", copy_then_write)
    with pytest.raises(StoreError, match="migrate again"):
        migrate(store, model=MODEL, settings=LOSSLESS)
    with Memory.open(store, read_only=True) as memory:
        assert memory.text("late") == b"Do not lose me."


def test_paths_with_dots_and_links(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store)
    done = migrate(Path(), model=MODEL, settings=LOSSLESS)
    shutil.rmtree(done.old_path)
    monkeypatch.chdir(store)
    done = migrate(Path("../s/../s"), model=MODEL, settings=Settings(codec="int8"))
    shutil.rmtree(done.old_path)
    (store.parent / "link").symlink_to(store)
    migrate(store.parent / "link", model=MODEL, settings=LOSSLESS)
    for path in (store, store.parent / "link"):
        with Store.open(path, mode="read") as opened:
            assert opened.fingerprint.codec == "lossless"
