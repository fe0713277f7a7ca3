"""A disk that fails under the verbs of a session's life: the change is there as a whole, or not at all."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv.errors import StoreError
from livingkv.store import Store
from tests.store.faulty_disk import FailingDisk
from tests.store.store_cases import SessionModel, assert_session, assert_whole, filled_store, write_store

CHANGES: dict[str, Callable[[Store, SessionModel], object]] = {
    "drop": lambda store, model: store.drop_pages(1, [1, 2]),
    "replace": lambda store, model: store.replace_pages(1, {0: model.pages[0]}),
    "fork": lambda store, model: store.fork(1, "fork"),
    "rename": lambda store, model: store.rename(1, "new"),
    "forget": lambda store, model: store.forget_sentences([1]),
    "defrag": lambda store, model: store.defrag(least_dead=0.0),
}


def after(what: str, model: SessionModel) -> SessionModel:
    """The session after a change."""
    if what == "drop":
        return model.without_pages(frozenset([1, 2]))
    if what == "forget":
        return model.without_sentence(1)
    return replace(model, name="new") if what == "rename" else model


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("lasting", [False, True])
def test_every_operation_may_fail(folder: Path, what: str, lasting: bool) -> None:
    for fail_at in range(12):
        root = folder / f"{what}{fail_at}"
        model = filled_store(root, segment_bytes=600)
        disk = FailingDisk()
        with write_store(root, disk=disk, segment_bytes=600) as store:
            if what == "defrag":
                store.drop_pages(1, [4])
                model = model.without_pages(frozenset([4]))
            disk.arm(fail_at, errno.ENOSPC, lasting=lasting)
            try:
                CHANGES[what](store, model)
            except StoreError as error:
                assert "\n" not in str(error)
            disk.arm(None, 0, lasting=False)
            row = store.session(1)
            is_done = row.name == "new" or row.n_sentences < len(model.sentences) or store.missing_pages(1) == [1, 2]
            assert_session(store, after(what, model) if is_done else model)
        with write_store(root, segment_bytes=600) as store:
            assert_session(store, after(what, model) if is_done else model)
            assert_whole(store)
