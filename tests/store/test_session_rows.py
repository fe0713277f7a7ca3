"""Rows of sessions that are kept say what rows made anew say, whatever happened in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from livingkv.store import Store
from livingkv.store.item_bytes import unpack_session
from livingkv.store.items import SessionItem
from tests.store.store_cases import grown, new_session, new_store, read_store


def assert_fresh(store: Store, root: Path) -> None:
    """What this store says is what one says that was just opened."""
    with read_store(root) as other:
        for folder in (None, "", "anna"):
            assert store.sessions(folder) == other.sessions(folder)


def test_kept_rows_are_those_of_the_catalog(folder: Path) -> None:
    root, rng = folder / "store", random.Random(5)
    with new_store(root) as store:
        one, two = new_session(store, "one"), new_session(store, "anna/two")
        other = new_session(store, "anna/three")
        changes: list[Callable[[], object]] = [
            lambda: grown(store, one, rng, n_tokens=70),
            lambda: store.pin(one.session_id),
            lambda: store.rename(two.session_id, "two"),
            lambda: grown(store, other, rng, n_tokens=9),
            lambda: store.fork(one.session_id, "anna/four"),
            lambda: store.forget_session(one.session_id),
            lambda: store.rename(two.session_id, "anna/one"),
        ]
        assert_fresh(store, root)
        for change in changes:
            change()
            assert_fresh(store, root)


def test_a_row_that_did_not_change_is_not_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(body: bytes) -> SessionItem:
        item = unpack_session(body)
        made.append(item.name)
        return item

    monkeypatch.setattr("livingkv.store.session_rows.unpack_session", counted)
    with new_store(folder / "store") as store:
        first = new_session(store, "one")
        new_session(store, "two")
        assert len(store.sessions()) == len(store.sessions()) == 2 and sorted(made) == ["one", "two"]
        grown(store, first, random.Random(1), n_tokens=5)
        assert store.sessions()[0].n_tokens == 5 and sorted(made) == ["one", "one", "two"]
