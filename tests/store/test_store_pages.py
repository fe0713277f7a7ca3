"""KV that is given up while the text stays: dropped, in quarantine, never there, and brought back."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv.errors import InputError, PageDropped, SessionNotFound
from tests.store.damage import PAGES_SEGMENT, flip, segment
from tests.store.store_cases import (
    PAGE_TOKENS,
    SessionModel,
    assert_session,
    assert_whole,
    filled_store,
    grown,
    make_append,
    new_session,
    new_store,
    read_store,
    rebuild,
    write_store,
)


def test_dropped_pages_keep_their_text_and_come_back(folder: Path) -> None:
    root = folder / "store"
    model = filled_store(root)
    with write_store(root) as store, read_store(root) as reader:
        assert store.drop_pages(1, [2, 3, 7, 3]) == 3 * 50
        assert store.drop_pages(1, [3]) == 0
        assert store.missing_pages(1) == [2, 3, 7]
        for each in (store, reader):
            assert each.text(1) == model.text
            assert each.read_pages(1, [0, 4]) == [model.pages[0], model.pages[4]]
            with pytest.raises(PageDropped, match=r"page 3 of session 1 has no KV \(dropped\)") as caught:
                each.read_pages(1, [0, 3])
            assert (caught.value.session_id, caught.value.page) == (1, 3)
        assert_whole(store)
        store.replace_pages(1, {page: model.pages[page] for page in (2, 3, 7)})
        assert_session(reader, model)
        assert_whole(store)
        for wrong in ([-1], [len(model.pages)]):
            with pytest.raises(InputError, match="page"):
                store.drop_pages(1, wrong)
        with pytest.raises(SessionNotFound):
            store.replace_pages(9, {})
    with write_store(root) as store:
        assert_session(store, model)
        assert_whole(store)


def test_a_damaged_page_is_put_in_quarantine_and_repaired(folder: Path) -> None:
    root = folder / "store"
    model = filled_store(root)
    flip(segment(root, PAGES_SEGMENT), (64 + 48 + 10) * 8)
    with write_store(root) as store:
        assert any("page 0" in problem for problem in store.check().problems)
        store.drop_pages(1, [0], quarantine=True)
        with pytest.raises(PageDropped, match="quarantined"):
            store.read_pages(1, [0])
        assert [problem for problem in store.check().problems if "page 0 is in quarantine" not in problem] == []
        store.replace_pages(1, {0: model.pages[0]})
        assert_session(store, model)
        assert_whole(store)


def test_the_space_of_dropped_pages_is_free_at_once(folder: Path) -> None:
    root, rng = folder / "store", random.Random(1)
    with new_store(root) as store:
        model = new_session(store)
        append = make_append(model, rng, n_tokens=80, page_bytes=100_000)
        store.append(append)
        before = store.stats()
        store.drop_pages(1, range(5, 20))
        after = store.stats()
        assert before.size_bytes - after.size_bytes > 15 * 90_000
        assert after.bytes_by_part["pages"] == 5 * 100_000
        assert after.bytes_by_part["dead"] < 15 * 10_000
        assert_whole(store)


def test_a_session_may_be_text_only(folder: Path) -> None:
    root, rng = folder / "store", random.Random(1)
    with new_store(root) as store:
        row = store.create_session("log", kv=False)
        assert row.text_only
        model = SessionModel(row.session_id, "log")
        for _ in range(8):
            append = make_append(model, rng, n_tokens=9)
            store.append(replace(append, pages=(), tail=b""))
            model = model.applied(append)
        assert_whole(store)
        store.create_session("kv")
    for lose in (False, True):
        if lose:
            rebuild(root)
        with write_store(root) as store:
            row = store.session("log")
            assert (row.n_tokens, row.needs_tail) == (len(model.ids), bool(len(model.ids) % PAGE_TOKENS))
            assert store.text(1) == model.text
            assert len(store.missing_pages(1)) == len(model.pages)
            with pytest.raises(PageDropped):
                store.read_pages(1, [0])
            assert_whole(store)
            other = make_append(SessionModel(2, "kv"), rng, n_tokens=9)
            with pytest.raises(InputError, match=r"append\.pages"):
                store.append(replace(other, pages=()))
    with write_store(root) as store:
        store.replace_pages(1, dict(enumerate(model.pages)), tail=model.tail)
        assert_session(store, model)
        assert_session(store, grown(store, model, rng, n_tokens=9))
        assert_whole(store)


def test_dropped_and_repaired_pages_survive_a_lost_catalog(folder: Path) -> None:
    root = folder / "store"
    model = filled_store(root, segment_bytes=700)
    with write_store(root, segment_bytes=700) as store:
        store.drop_pages(1, range(2, 9))
        repaired = {page: bytes([page]) * 60 for page in (3, 4)}
        store.replace_pages(1, repaired)
        store.pin(1)
    rebuild(root)
    with write_store(root) as store:
        assert store.missing_pages(1) == [2, 5, 6, 7, 8]
        assert store.read_pages(1, [1, 3, 4]) == [model.pages[1], repaired[3], repaired[4]]
        assert store.session(1).pinned
        assert store.text(1) == model.text
