"""Forks and new names: neither a fork nor its origin is affected by what happens to the other."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv.errors import InputError, SessionExists, SessionNotFound
from tests.store.secret_cases import SECRET, secret_store
from tests.store.store_cases import (
    SessionModel,
    assert_session,
    assert_whole,
    filled_store,
    grown,
    holds,
    read_store,
    rebuild,
    write_store,
)


def copied(model: SessionModel, session_id: int, name: str) -> SessionModel:
    return replace(model, session_id=session_id, name=name)


def test_a_fork_and_its_origin_do_not_affect_each_other(folder: Path) -> None:
    root, rng = folder / "store", random.Random(8)
    one = filled_store(root, segment_bytes=3000)
    with write_store(root, segment_bytes=3000) as store:
        pages = store.stats().bytes_by_part["pages"]
        row = store.fork(1, "two")
        two = copied(one, row.session_id, "two")
        assert store.stats().bytes_by_part["pages"] == pages
        assert_session(store, two)
        assert_whole(store)
        for _ in range(3):
            one = grown(store, one, rng, n_tokens=6)
            two = grown(store, two, rng, n_tokens=7)
        three = copied(two, store.fork(2, "three").session_id, "three")
        store.drop_pages(1, range(4))
        for model in (two, three):
            assert_session(store, model)
        store.replace_pages(1, {page: one.pages[page] for page in range(4)})
        for model in (one, two, three):
            assert_session(store, model)
        assert_whole(store)
        with pytest.raises(SessionExists):
            store.fork(1, "two")
    rebuild(root)
    with write_store(root, segment_bytes=3000) as store:
        for model in (one, two, three):
            if store.session(model.name).needs_tail:
                store.replace_pages(model.session_id, {}, tail=model.tail)
            assert_session(store, model)
        assert_whole(store)
        for gone in (1, 2):
            store.forget_session(gone)
            assert_session(store, three)
            assert_whole(store)
    rebuild(root)
    with write_store(root) as store:
        store.replace_pages(3, {}, tail=three.tail)
        assert_session(store, three)
        assert_whole(store)
        store.forget_session(3)
        assert store.stats().bytes_by_part["pages"] == 0


def test_a_sentence_forgotten_in_one_stays_in_the_fork(folder: Path) -> None:
    root = folder / "store"
    store, model = secret_store(root)
    with store:
        fork = copied(model, store.fork(1, "fork").session_id, "fork")
        store.forget_sentences([5, 9])
        assert_session(store, fork)
        assert holds(root, SECRET)
        assert_whole(store)
        found = store.sentences_after(None, 99)
        own = [each.sentence_id for each in found if each.session_id == 2 and each.raw == SECRET]
        store.forget_sentences(own)
        assert holds(root, SECRET) == []
        assert_whole(store)
        before = (store.sessions(), store.sentences_after(None, 99))
    rebuild(root)
    with read_store(root) as store:
        assert (store.sessions(), store.sentences_after(None, 99)) == before
        assert_whole(store)


def test_families_outlive_a_member_and_the_catalog(folder: Path) -> None:
    """A, its fork B, B's fork C: B is forgotten, the catalog lost. C and A still know that they share."""
    root = folder / "store"
    one = filled_store(root)
    with write_store(root) as store:
        store.fork(1, "b")
        store.fork(2, "c")
        store.forget_session(2)
    rebuild(root)
    with write_store(root) as store:
        store.replace_pages(1, {}, tail=one.tail)
        store.forget_session(3)
        assert_session(store, one)
        assert_whole(store)


def test_renaming(folder: Path) -> None:
    model = filled_store(folder / "store")
    with write_store(folder / "store") as store:
        store.create_session("other")
        assert store.rename(1, "new").name == "new"
        assert store.rename(1, "new").name == "new"
        assert_session(store, copied(model, 1, "new"))
        for wrong in ("other", ""):
            with pytest.raises((SessionExists, InputError)):
                store.rename(1, wrong)
        with pytest.raises(SessionNotFound):
            store.session("main")
        assert_whole(store)


def test_a_receipt_counts_no_page_that_a_relative_keeps(folder: Path) -> None:
    root = folder / "store"
    model = filled_store(root)
    with write_store(root) as store:
        n_pages = len(model.pages)
        copy = store.fork(1, "copy").session_id
        assert n_pages and store.forget_session(copy).n_pages == 0
        copy = store.fork(1, "copy").session_id
        (first, *_) = [each for each in store.sentences_after(None, 1000) if each.session_id == copy]
        receipt = store.forget_sentences([first.sentence_id], deep=True)
        assert (receipt.n_pages, receipt.n_later_pages) == (0, 0)
        assert_session(store, model)
        store.fork(1, "third")
        assert store.forget_everything().n_pages == n_pages
