"""The making and destroying of keys, broken off at each step: no session without its key, no key left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv.store import Disk, Step
from livingkv.store.key_files import KEYS
from tests.store.sealed_cases import filled, keys_in, open_again
from tests.store.store_cases import (
    assert_session,
    assert_whole,
    new_store,
)


class StoppingDisk(Disk):
    """A disk that ends everything at a step."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.is_armed = False

    def reached(self, step: Step) -> None:
        if self.is_armed and step is self.step:
            raise KeyboardInterrupt


MAKING = [Step.KEY_MADE, Step.MANIFEST_WRITTEN, Step.MANIFEST_RENAMED, Step.LOG_WRITTEN, Step.SEGMENTS_SYNCED]


@pytest.mark.parametrize("step", [*MAKING, Step.COMMIT_PREPARED, Step.COMMITTED])
def test_no_session_is_without_its_key(folder: Path, step: Step) -> None:
    disk = StoppingDisk(step)
    store = new_store(folder / "s", disk=disk)
    disk.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        store.create_session("diary", encrypt=True)
    store.close()
    with open_again(folder / "s") as store:
        names = [row.name for row in store.sessions()]
        assert names == (["diary"] if step is Step.COMMITTED else [])
        assert len(keys_in(folder / "s" / KEYS)) == len(names)
        assert all(store.has_key(row.session_id) for row in store.sessions())
        assert_whole(store)
        model = filled(store, "next")
        assert_session(store, model)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(
    "step", [Step.COMMIT_PREPARED, Step.COMMITTED, Step.KEY_OVERWRITTEN, Step.KEY_REMOVED, Step.ERASED, Step.SCRUBBED]
)
def test_no_key_is_left_after_a_forgetting(folder: Path, step: Step, elsewhere: bool) -> None:
    keys = folder / "keys" if elsewhere else None
    with new_store(folder / "s"):
        pass
    disk = StoppingDisk(step)
    store = open_again(folder / "s", key_folder=keys, disk=disk)
    model = filled(store)
    disk.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        store.forget_session(model.session_id)
    store.close()
    with open_again(folder / "s", key_folder=keys) as store:
        left = keys_in(keys or folder / "s" / KEYS)
        if step is Step.COMMIT_PREPARED:
            assert len(left) == 1
            assert_session(store, model)
        else:
            assert left == [] and store.sessions() == []
            with store._catalog.read() as snapshot:
                assert snapshot.dropped_keys() == []
        assert_whole(store)


def test_a_key_elsewhere_stays_listed_until_it_can_be_destroyed(folder: Path) -> None:
    keys, disk = folder / "keys", StoppingDisk(Step.COMMITTED)
    with new_store(folder / "s"):
        pass
    store = open_again(folder / "s", key_folder=keys, disk=disk)
    model = filled(store)
    disk.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        store.forget_session(model.session_id)
    store.close()
    open_again(folder / "s").close()
    assert len(keys_in(keys)) == 1
    open_again(folder / "s", key_folder=keys).close()
    assert keys_in(keys) == []
