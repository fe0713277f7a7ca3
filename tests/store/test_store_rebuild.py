"""A lost or unreadable catalog is rebuilt from the segments: whole commits, and what is missing is said."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv.errors import PageDamaged, PageDropped, RecordDamaged, StoreError, StoreLocked, StoreNotFound
from livingkv.store import Append, Step, Store
from tests.store.damage import LOG_SEGMENT, PAGES_SEGMENT, flip, segment
from tests.store.faulty_disk import DiesAt
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
    write_store,
)


def mend_tail(store: Store, model: SessionModel) -> None:
    """Check that a session's tail is said to be missing, then give it back."""
    row = store.session(model.name)
    assert row.needs_tail == bool(len(model.ids) % PAGE_TOKENS)
    if row.needs_tail:
        with pytest.raises(PageDropped, match="not stored"):
            store.read_tail(row.session_id)
        store.replace_pages(row.session_id, {}, tail=model.tail)


@pytest.mark.parametrize("segment_bytes", [700, 1 << 20])
def test_a_lost_catalog_is_rebuilt(folder: Path, segment_bytes: int) -> None:
    root, rng = folder / "store", random.Random(3)
    with new_store(root, segment_bytes=segment_bytes) as store:
        models = [new_session(store, name) for name in ("one", "two", "empty")]
        for _ in range(20):
            appends: list[Append] = []
            for _ in range(rng.choice([1, 3])):
                number = rng.randrange(2)
                append = make_append(models[number], rng, source=rng.choice(["book", "notes"]))
                models[number] = models[number].applied(append)
                appends.append(append)
            store.append_all(appends)
        before = (store.sessions(), [store.sources(each.session_id) for each in models], store.stats())
    shutil.rmtree(root / "catalog")
    with pytest.raises(RecordDamaged, match="livingkv repair"):
        write_store(root)
    report = Store.rebuild_catalog(root, catalog_bytes=1 << 24)
    assert report.problems == ()
    assert report.n_sessions == 3
    assert report.n_tokens == sum(len(model.ids) for model in models)
    with write_store(root, segment_bytes=segment_bytes) as store:
        rows = [replace(row, needs_tail=False) for row in store.sessions()]
        assert rows == before[0]
        assert [store.sources(each.session_id) for each in models] == before[1]
        for model in models:
            mend_tail(store, model)
            assert_session(store, model)
        assert_whole(store)
        assert store.stats().bytes_by_part["text"] == before[2].bytes_by_part["text"]
        assert_session(store, grown(store, models[0], rng, n_tokens=9))
        assert_whole(store)


def test_only_whole_commits_come_back(folder: Path) -> None:
    """Cut the log at every byte of its last commit: it is there or it is not."""
    root = folder / "store"
    rng = random.Random(5)
    model = filled_store(root)
    log = segment(root, LOG_SEGMENT)
    before = log.stat().st_size
    with write_store(root) as store:
        appends = []
        after = model
        for _ in range(2):
            appends.append(make_append(after, rng, n_tokens=5))
            after = after.applied(appends[-1])
        store.append_all(appends)
    data = log.read_bytes()
    shutil.rmtree(root / "catalog")
    for size in [*range(before, len(data), 29), len(data)]:
        copy = folder / f"copy{size}"
        shutil.copytree(root, copy)
        segment(copy, LOG_SEGMENT).write_bytes(data[:size])
        Store.rebuild_catalog(copy, catalog_bytes=1 << 24)
        expected = after if size == len(data) else model
        with write_store(copy) as store:
            mend_tail(store, expected)
            assert_session(store, expected)
            assert_whole(store)


def test_damage_costs_only_what_is_damaged(folder: Path) -> None:
    root = folder / "store"
    model = filled_store(root)
    rng = random.Random(2)
    for number in (LOG_SEGMENT, PAGES_SEGMENT):
        path = segment(root, number)
        whole = path.read_bytes()
        for _ in range(15):
            path.write_bytes(whole)
            flip(path, rng.randrange(64, len(whole)) * 8 + rng.randrange(8))
            shutil.rmtree(root / "catalog")
            report = Store.rebuild_catalog(root, catalog_bytes=1 << 24)
            with write_store(root) as store:
                if not store.sessions():
                    assert report.problems
                    continue
                row = store.session("main")
                assert row.n_tokens >= len(model.ids) - 9
                for page in range(row.n_sealed_tokens // PAGE_TOKENS):
                    with suppress(PageDamaged):
                        assert store.read_pages(1, [page]) == [model.pages[page]]
                for token in range(row.n_tokens):
                    try:
                        assert store.token_ids(1, token, token + 1).tolist() == model.ids[token : token + 1]
                    except RecordDamaged:
                        assert report.problems
        path.write_bytes(whole)


def test_a_whole_catalog_is_not_rebuilt(folder: Path) -> None:
    model = filled_store(folder / "store")
    with pytest.raises(StoreError, match="is whole"):
        Store.rebuild_catalog(folder / "store", catalog_bytes=1 << 24)
    with pytest.raises(StoreNotFound):
        Store.rebuild_catalog(folder / "none", catalog_bytes=1 << 24)
    with write_store(folder / "store"), pytest.raises(StoreLocked):
        Store.rebuild_catalog(folder / "store", catalog_bytes=1 << 24)
    with read_store(folder / "store") as store:
        assert_session(store, model)


@pytest.mark.parametrize("step", [Step.COMMIT_PREPARED, Step.CATALOG_REMOVED, Step.CATALOG_REBUILT])
@pytest.mark.parametrize("lost", [True, False])
def test_a_rebuilding_that_breaks_off_is_done_again(folder: Path, step: Step, lost: bool) -> None:
    root = folder / "store"
    model = filled_store(root)
    if lost:
        shutil.rmtree(root / "catalog")
    else:
        (root / "catalog" / "data.mdb").write_bytes(b"not a catalog" * 1000)
    with pytest.raises(KeyboardInterrupt):
        Store.rebuild_catalog(root, catalog_bytes=1 << 24, disk=DiesAt(step))
    if step is not Step.CATALOG_REBUILT:
        with pytest.raises(StoreError):
            write_store(root)
        assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()
    with write_store(root) as store:
        mend_tail(store, model)
        assert_session(store, model)
        assert_whole(store)
    assert {path.name for path in root.iterdir()} == {"manifest.json", "lock", "segments", "catalog"}


def test_an_unreadable_catalog_is_rebuilt(folder: Path) -> None:
    root = folder / "store"
    model = filled_store(root)
    for content in (b"", b"not a catalog" * 1000):
        (root / "catalog" / "data.mdb").write_bytes(content)
        with pytest.raises(StoreError):
            write_store(root)
        assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()
        with write_store(root) as store:
            mend_tail(store, model)
            assert_session(store, model)
            assert_whole(store)
