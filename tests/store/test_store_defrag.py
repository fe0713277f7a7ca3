"""Compacting segments online: nothing changes but the space, readers go on, and breaking off is harmless."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from livingkv.store import Step, Store
from tests.store.damage import PAGES_SEGMENT, flip, segment
from tests.store.faulty_disk import DiesAt
from tests.store.store_cases import (
    SessionModel,
    assert_session,
    assert_whole,
    grown,
    new_session,
    new_store,
    rebuild,
    write_store,
)


def worn_store(root: Path, n_appends: int = 30) -> SessionModel:
    """A store of many small segments; session 1 is kept, session 2 was forgotten."""
    rng = random.Random(4)
    with new_store(root, segment_bytes=4000) as store:
        models = [new_session(store, name) for name in ("main", "gone")]
        for number in range(n_appends):
            models[number % 2] = grown(store, models[number % 2], rng, n_tokens=9, page_bytes=300)
        store.forget_session(2)
    return models[0]


def test_dead_bytes_are_given_back(folder: Path) -> None:
    root = folder / "store"
    model = worn_store(root)
    with write_store(root, segment_bytes=4000) as store:
        fork = SessionModel(**(vars(model) | {"session_id": store.fork(1, "fork").session_id, "name": "fork"}))
        old = {path.name for path in (root / "segments").iterdir()}
        report = store.defrag()
        assert report.n_segments > 3
        assert report.problems == ()
        assert report.bytes_after < 0.75 * report.bytes_before
        assert store.stats().bytes_by_part["dead"] < 500
        assert store.defrag().n_segments == 0
        assert len(old - {path.name for path in (root / "segments").iterdir()}) == report.n_segments
        for each in (model, fork):
            assert_session(store, each)
        assert_whole(store)
        assert_session(store, grown(store, model, random.Random(1), n_tokens=9))
        assert_whole(store)
    rebuild(root)
    with write_store(root) as store:
        store.replace_pages(fork.session_id, {}, tail=fork.tail)
        assert_session(store, fork)
        assert_whole(store)


def test_a_segment_with_damage_stays(folder: Path) -> None:
    root = folder / "store"
    model = worn_store(root)
    path = segment(root, PAGES_SEGMENT)
    flip(path, path.read_bytes().index(model.pages[0]) * 8)
    with write_store(root, segment_bytes=4000) as store:
        report = store.defrag()
        assert any("segment 2 is not moved" in problem for problem in report.problems)
        assert path.exists()
        assert store.read_pages(1, range(1, len(model.pages))) == model.pages[1:]


@pytest.mark.parametrize(
    "step",
    [
        Step.SEGMENT_MADE,
        Step.LOG_WRITTEN,
        Step.SEGMENTS_SYNCED,
        Step.COMMIT_PREPARED,
        Step.COMMITTED,
        Step.SEGMENT_REMOVED,
    ],
)
def test_breaking_off_is_harmless(folder: Path, step: Step) -> None:
    worn_store(folder / "origin", n_appends=10)
    for count in (1, 2):
        root = folder / f"store{count}"
        model = worn_store(root, n_appends=10)
        with write_store(root, disk=DiesAt(step, count), segment_bytes=4000) as store:
            with pytest.raises(KeyboardInterrupt):
                store.defrag()
            assert_session(store, model)
            assert_whole(store)
        with write_store(root, segment_bytes=4000) as store:
            assert_session(store, model)
            assert_whole(store)
            store.defrag()
            assert_session(store, model)
            assert_whole(store)


def test_readers_go_on_beside_it(folder: Path) -> None:
    root = folder / "store"
    model = worn_store(root)
    failures: list[BaseException] = []
    is_done = threading.Event()

    def read(store: Store) -> None:
        rng = random.Random(threading.get_ident())
        try:
            while not is_done.is_set():
                page = rng.randrange(len(model.pages))
                assert store.read_pages(1, [page, 0]) == [model.pages[page], model.pages[0]]
                assert store.text(1) == model.text
        except BaseException as error:  # handed to the test's thread
            failures.append(error)

    with write_store(root, segment_bytes=4000) as writer, Store.open(root, mode="read") as reader:
        threads = [threading.Thread(target=read, args=(store,)) for store in (writer, reader)]
        for thread in threads:
            thread.start()
        extra = writer.fork(1, "extra").session_id
        for number in range(4):
            writer.drop_pages(extra, [number])
            writer.defrag(least_dead=0.0)
        is_done.set()
        for thread in threads:
            thread.join()
        assert not failures, failures
        reader.read_pages(1, range(len(model.pages)))
        for each in (reader, writer):
            each._segments.release_removed()
        links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208
        assert not [link for link in links if link.is_symlink() and str(link.readlink()).endswith(".seg (deleted)")]
