"""Damaged, cut, missing and newer files: named by `check`, refused when read, never returned as data."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from xxhash import xxh3_64_digest as checksum_digest

from livingkv.errors import FormatUnsupported, LivingKVError, PageDamaged, RecordDamaged, StoreNotFound
from livingkv.store import Store
from livingkv.store.snapshot import Snapshot
from tests.store.damage import LOG_SEGMENT, PAGES_SEGMENT, flip, segment
from tests.store.store_cases import (
    FINGERPRINT,
    SessionModel,
    assert_session,
    assert_whole,
    filled_store,
    grown,
    make_append,
    new_store,
    read_store,
    write_store,
)


def everything(store: Store, model: SessionModel) -> list[LivingKVError]:
    """Read everything; what comes back must be right, the rest is returned as errors."""
    errors: list[LivingKVError] = []
    for page, expected in enumerate(model.pages):
        try:
            assert store.read_pages(1, [page]) == [expected]
        except LivingKVError as error:
            errors.append(error)
    for lo in range(0, len(model.ids), 3):
        try:
            assert store.token_ids(1, lo, lo + 1).tolist() == model.ids[lo : lo + 1]
        except LivingKVError as error:
            errors.append(error)
    for lo in range(0, len(model.text), 5):
        try:
            assert store.text(1, lo, lo + 1) == model.text[lo : lo + 1]
        except LivingKVError as error:
            errors.append(error)
    return errors


def test_bit_flips_are_named_and_never_returned(folder: Path) -> None:
    model = filled_store(folder / "store")
    rng = random.Random(11)
    for number in (LOG_SEGMENT, PAGES_SEGMENT):
        path = segment(folder / "store", number)
        whole = path.read_bytes()
        for _ in range(40):
            flip(path, rng.randrange(len(whole) * 8))
            with read_store(folder / "store") as store:
                problems = store.check().problems
                errors = everything(store, model)
            assert all("\n" not in problem for problem in problems)
            # only padding and the creation event are not read by anybody but check
            assert problems or not errors
            assert problems or whole != path.read_bytes()
            path.write_bytes(whole)
    with write_store(folder / "store") as store:
        assert_session(store, model)
        assert_whole(store)


def test_a_flipped_page_is_named_with_its_place(folder: Path) -> None:
    model = filled_store(folder / "store")
    path = segment(folder / "store", PAGES_SEGMENT)
    at = path.read_bytes().index(model.pages[3])
    flip(path, at * 8)
    with read_store(folder / "store") as store:
        with pytest.raises(PageDamaged, match="page 3 of session 1") as caught:
            store.read_pages(1, [1, 2, 3, 4])
        error = caught.value
        assert (error.session_id, error.page, error.segment, error.offset) == (1, 3, PAGES_SEGMENT, at - 48)
        assert store.read_pages(1, [2, 4]) == [model.pages[2], model.pages[4]]
        assert len(everything(store, model)) == 1
        (problem,) = store.check().problems
        assert "session 1 page 3" in problem
    with write_store(folder / "store") as store:  # damage does not stop the session
        append = make_append(model, random.Random(1), n_tokens=9)
        store.append(append)
        assert store.text(1) == model.applied(append).text


@pytest.mark.parametrize("number", [LOG_SEGMENT, PAGES_SEGMENT])
@pytest.mark.parametrize("kept", [0, 10, 64, 200, 500])
def test_a_truncated_segment(folder: Path, number: int, kept: int) -> None:
    model = filled_store(folder / "store")
    path = segment(folder / "store", number)
    path.write_bytes(path.read_bytes()[:kept])
    for open_store in (read_store, write_store):
        with open_store(folder / "store") as store:
            assert everything(store, model)
            problems = store.check().problems
            assert any(f"segment {number}" in problem for problem in problems)
    with write_store(folder / "store") as store:
        after = grown(store, model, random.Random(1), n_tokens=9)
        assert store.read_pages(1, range(len(model.pages), len(after.pages))) == after.pages[len(model.pages) :]
        assert store.text(1, len(model.text)) == after.text[len(model.text) :]
        assert store.session("main").n_tokens == len(after.ids)


@pytest.mark.parametrize("number", [LOG_SEGMENT, PAGES_SEGMENT])
def test_a_missing_segment(folder: Path, number: int) -> None:
    model = filled_store(folder / "store")
    segment(folder / "store", number).unlink()
    with write_store(folder / "store") as store:
        assert all(isinstance(error, RecordDamaged) for error in everything(store, model))
        problems = store.check().problems
        names = "session 1 page 5" if number == PAGES_SEGMENT else "session 1 chunk 5"
        assert any(names in problem for problem in problems)
        append = make_append(model, random.Random(1), n_tokens=9)
        store.append(append)
        assert store.text(1, len(model.text)) == append.text


def test_a_torn_tail_is_cut_by_a_writer_and_ignored_by_a_reader(folder: Path) -> None:
    model = filled_store(folder / "store")
    for number in (LOG_SEGMENT, PAGES_SEGMENT):
        path = segment(folder / "store", number)
        path.write_bytes(path.read_bytes() + b"LKVR" + bytes(33))
    segment(folder / "store", 77).write_bytes(b"never committed")
    (folder / "store" / "segments" / "notes.txt").write_text("not ours")
    (folder / "store" / "manifest.json.tmp").write_text("{")
    with read_store(folder / "store") as store:
        assert_session(store, model)
        assert store.stats().bytes_by_part["dead"] > 0
    for _ in range(2):
        with write_store(folder / "store") as store:
            assert_session(store, model)
            assert store.check().problems == ()
        assert not segment(folder / "store", 77).exists()
        assert not (folder / "store" / "manifest.json.tmp").exists()
        assert (folder / "store" / "segments" / "notes.txt").exists()


def test_a_segment_of_another_store_is_not_read(folder: Path) -> None:
    model = filled_store(folder / "store")
    filled_store(folder / "other")
    shutil.copy(segment(folder / "other", PAGES_SEGMENT), segment(folder / "store", PAGES_SEGMENT))
    with read_store(folder / "store") as store:
        with pytest.raises(PageDamaged, match="belongs to another store"):
            store.read_pages(1, [0])
        assert everything(store, model)
        assert store.check().problems


@pytest.mark.parametrize("gone", ["catalog", "catalog/data.mdb"])
def test_a_missing_catalog_touches_nothing(folder: Path, gone: str) -> None:
    filled_store(folder / "store")
    path = folder / "store" / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = {each: each.read_bytes() for each in (folder / "store" / "segments").iterdir()}
    for open_store in (read_store, write_store, new_store):
        with pytest.raises(RecordDamaged, match="lost its catalog"):
            open_store(folder / "store")
    (folder / "store" / "manifest.json").unlink()
    with pytest.raises(RecordDamaged, match="lost its catalog"):
        new_store(folder / "store")
    assert before == {each: each.read_bytes() for each in (folder / "store" / "segments").iterdir()}


READINGS: dict[bytes, Callable[[Store], object]] = {
    b"pages": lambda store: store.read_pages(1, [0]),
    b"chunks": lambda store: store.text(1),
    b"sessions": lambda store: store.session("main"),
    b"tails": lambda store: store.read_tail(1),
    b"sentences": lambda store: store.sentences_after(None, 1),
}


def test_a_damaged_catalog_row_is_named(folder: Path) -> None:
    model = filled_store(folder / "store")
    for name, reading in READINGS.items():
        with lmdb.open(str(folder / "store" / "catalog"), max_dbs=20) as environment:
            database = environment.open_db(name)
            with environment.begin(write=True, db=database) as transaction:
                cursor = transaction.cursor()
                assert cursor.first()
                key, value = cursor.item()
                transaction.put(key, value[:-1] + bytes([value[-1] ^ 1]))
        with read_store(folder / "store") as store:
            with pytest.raises(RecordDamaged):
                reading(store)
            assert any(name.decode() in problem for problem in store.check().problems)
        with lmdb.open(str(folder / "store" / "catalog"), max_dbs=20) as environment:
            database = environment.open_db(name)
            with environment.begin(write=True, db=database) as transaction:
                transaction.put(key, value)
    with read_store(folder / "store") as store:
        assert_session(store, model)
        assert_whole(store)


def test_a_catalog_that_lmdb_cannot_read_is_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled_store(folder / "store")

    def fail(*_: object) -> None:
        raise lmdb.CorruptedError("mdb_get")

    with read_store(folder / "store") as store:
        monkeypatch.setattr(Snapshot, "session_id", fail)
        monkeypatch.setattr(Snapshot, "segments", fail)
        with pytest.raises(RecordDamaged, match="cannot be read") as caught:
            store.session("main")
        assert isinstance(caught.value.__cause__, lmdb.Error)
        assert any("cannot be read" in problem for problem in store.check().problems)


@pytest.mark.parametrize(
    "database", [b"pages", b"chunks", b"sentences", b"source_chunks", b"sources", b"names", b"tails"]
)
def test_a_missing_catalog_row_is_named(folder: Path, database: bytes) -> None:
    filled_store(folder / "store")
    with lmdb.open(str(folder / "store" / "catalog"), max_dbs=20) as environment:
        handle = environment.open_db(database)
        with environment.begin(write=True, db=handle) as transaction:
            cursor = transaction.cursor()
            assert cursor.last()
            assert cursor.delete()
    with read_store(folder / "store") as store:
        assert store.check().problems


def test_a_lost_or_damaged_manifest_is_written_anew_from_the_catalog(folder: Path) -> None:
    model = filled_store(folder / "store")
    path = folder / "store" / "manifest.json"
    whole = path.read_bytes()
    for damaged in (b"", b"{", b"\xff\xfe", b"[]", b"{}", whole.replace(b"tiny:0123", b"tiny:9999"), whole[:-9]):
        path.write_bytes(damaged)
        for open_store in (read_store, write_store, new_store):
            with pytest.raises(LivingKVError, match=r"manifest|model"):
                open_store(folder / "store")
    path.unlink()
    with pytest.raises(StoreNotFound):
        read_store(folder / "store")
    with new_store(folder / "store") as store:
        assert_session(store, model)
    assert path.read_bytes() == whole


def test_a_newer_store_is_refused(folder: Path) -> None:
    filled_store(folder / "store")
    path = folder / "store" / "manifest.json"
    values = json.loads(path.read_bytes())
    for change in ({"format": 2}, {"features": ["telepathy"]}):
        path.write_text(json.dumps(values | change))
        for open_store in (read_store, write_store, new_store):
            with pytest.raises(FormatUnsupported, match="update livingkv"):
                open_store(folder / "store")
    path.write_text(json.dumps(values | {"comment": "unknown keys are ignored"}))
    read_store(folder / "store").close()


def test_a_newer_record_is_refused_not_damaged(folder: Path) -> None:
    model = filled_store(folder / "store")
    path = segment(folder / "store", PAGES_SEGMENT)
    data = bytearray(path.read_bytes())
    data[64 + 4] = 2
    data[64 + 40 : 64 + 48] = checksum_digest(bytes(data[64 : 64 + 40]))[::-1]
    path.write_bytes(bytes(data))
    with read_store(folder / "store") as store:
        with pytest.raises(FormatUnsupported):
            store.read_pages(1, [0])
        assert store.read_pages(1, [1]) == [model.pages[1]]
        assert store.check().problems


def test_the_manifest_is_for_people(folder: Path) -> None:
    new_store(folder / "store").close()
    values = json.loads((folder / "store" / "manifest.json").read_text())
    assert values["fingerprint"] == FINGERPRINT.to_json()
    assert values["format"] == 1
