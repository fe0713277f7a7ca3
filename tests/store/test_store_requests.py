"""Idempotency keys: in one commit with what was stored under them, for a day, so many of them, and quoting nothing."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from livingkv.store import Disk, IdempotencyKey, Step, Store, catalog, item_bytes
from livingkv.store.snapshot import DATABASES
from tests.store.faulty_disk import DiesAt
from tests.store.store_cases import holds, make_append, new_session, new_store, read_store, rebuild, write_store

KEY = IdempotencyKey.of("key 1", b"what was asked")


def store_under(store: Store, key: IdempotencyKey, seed: int = 0) -> range:
    """Append once under a key, to a session that is made for it where there is none."""
    model = new_session(store, f"session {seed}")
    return store.append_all([make_append(model, random.Random(seed))], key)


def test_a_key_is_found_with_what_was_stored_under_it(folder: Path) -> None:
    with new_store(folder / "store") as store:
        store_under(store, IdempotencyKey.of("key 0", b""), 1)
        ids = store_under(store, KEY)
        store.create_session("b", once=IdempotencyKey.of("key 2", b""))
        store.fork(1, "c", IdempotencyKey.of("key 3", b""))
        store.export_session(1, folder / "file")
        store.import_session(folder / "file", name="d", once=IdempotencyKey.of("key 4", b""))
    with read_store(folder / "store") as store:
        found = store.request(KEY)
        assert found is not None and found.sentence_ids == ids and ids and found.digest == KEY.digest
        for name in ("key 2", "key 3", "key 4"):
            known = store.request(IdempotencyKey.of(name, b""))
            assert known is not None and list(known.sentence_ids) == []
        assert store.request(IdempotencyKey.of("key 5", b"what was asked")) is None
        assert store.check().problems == ()


@pytest.mark.parametrize("step", [Step.LOG_WRITTEN, Step.COMMIT_PREPARED, Step.COMMITTED])
def test_a_key_is_there_exactly_where_its_append_is(folder: Path, step: Step) -> None:
    disk = DiesAt()
    store = new_store(folder / "store", disk=disk)
    append = make_append(new_session(store), random.Random(0))
    disk.step = step
    with pytest.raises(KeyboardInterrupt):
        store.append_all([append], KEY)
    store.close()
    with read_store(folder / "store") as store:
        is_there = store.session("main").n_tokens > 0
        assert is_there == (step is Step.COMMITTED) == (store.request(KEY) is not None)


def test_another_request_of_the_same_key_has_another_digest_and_neither_is_in_the_files(folder: Path) -> None:
    other = IdempotencyKey.of("key 1", b"what else was asked")
    assert other.key == KEY.key and other.digest != KEY.digest
    assert IdempotencyKey.of("key 2", b"what was asked").digest != KEY.digest
    with new_store(folder / "store") as store:
        store_under(store, KEY)
    assert holds(folder / "store", KEY.digest) and not holds(folder / "store", b"what was asked")
    assert not holds(folder / "store", b"key 1")


def test_keys_are_known_for_a_day(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with new_store(folder / "store") as store:
        store_under(store, KEY)
        for seconds in (86_399, -2 * 86_398):
            now[0] += seconds
            assert store.request(KEY) is not None
        now[0] += 2 * 86_398 - 86_399 - 86_401
        assert store.request(KEY) is None  # the clock had run ahead
        now[0] += 2 * 86_401
        assert store.request(KEY) is None
        other = IdempotencyKey.of("key 2", b"")
        store_under(store, other, 1)
        rows = catalog.Catalog(folder / "store" / "catalog", 1 << 24, writable=False)
        with rows.read() as snapshot:
            assert snapshot.request(KEY.key) is None and snapshot.request(other.key) is not None
        rows.close()
        now[0] += 3
        ids = store_under(store, KEY, 2)
        found = store.request(KEY)
        assert found is not None and found.sentence_ids == ids and store.request(other) is not None


def test_so_many_keys_are_known_the_newest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "REQUESTS_KEPT", 3)
    keys = [IdempotencyKey.of(f"key {number}", b"") for number in range(6)]
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with new_store(folder / "store") as store:
        for number, key in enumerate(keys):
            now[0] += 1
            store_under(store, key, number)
        assert [store.request(key) is not None for key in keys] == [False] * 3 + [True] * 3
        now[0] += 1
        store_under(store, keys[3], 7)  # it is the newest now
        now[0] += 1
        store_under(store, keys[0], 8)
        assert [store.request(key) is not None for key in keys] == [True, False, False, True, False, True]


def test_a_store_of_before_and_a_rebuilt_catalog_know_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        old = tuple(name for name in DATABASES if not name.startswith(b"request"))
        before.setattr("livingkv.store.catalog.DATABASES", old)
        with new_store(folder / "store", disk=Disk()) as store:
            new_session(store)
    with read_store(folder / "store") as store:
        assert store.request(KEY) is None
    with write_store(folder / "store") as store:
        store_under(store, KEY)
        assert store.request(KEY) is not None
    rebuild(folder / "store")
    with read_store(folder / "store") as store:
        assert store.request(KEY) is None and store.session("session 0").n_tokens > 0


def test_once_something_is_forgotten_what_was_asked_is_in_no_file(folder: Path) -> None:
    with new_store(folder / "store") as store:
        ids = store_under(store, KEY)
        store_under(store, IdempotencyKey.of("key 2", b""), 1)
        store.forget_session(2)
        found = store.request(KEY)
        assert found is not None and found.sentence_ids == ids and found.may_be(KEY.digest)
        assert found.may_be(IdempotencyKey.of("key 1", b"anything").digest) and not any(found.digest)
        assert holds(folder / "store", KEY.digest) == [] and store.check().problems == ()


def test_a_damaged_row_of_another_request_is_named_and_stops_nothing(folder: Path) -> None:
    with new_store(folder / "store") as store:
        store_under(store, KEY)
        rows = catalog.Catalog(folder / "store" / "catalog", 1 << 24, writable=True)
        with rows.read() as snapshot:
            ((stored_ms, key),) = snapshot.request_ages()
        age = item_bytes.key_age(stored_ms, key)
        environment = rows._environment
        environment.write(lambda write: write.put(age, b"none", db=environment.handles[b"request_ages"]), lambda: None)
        rows.close()
        assert any("request_ages" in line for line in store.check().problems)
        other = IdempotencyKey.of("key 2", b"")
        store_under(store, other, 1)
        assert store.request(other) is not None and store.request(KEY) is not None


def test_a_row_that_no_age_leads_to_is_named(folder: Path) -> None:
    with new_store(folder / "store") as store:
        store_under(store, KEY)
        rows = catalog.Catalog(folder / "store" / "catalog", 1 << 24, writable=True)
        environment = rows._environment
        environment.write(lambda write: write.drop(environment.handles[b"request_ages"], delete=False), lambda: None)
        rows.close()
        assert [line for line in store.check().problems if "listed by age" in line]


def test_a_key_that_is_put_stays_though_the_clock_went_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "REQUESTS_KEPT", 2)
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with new_store(folder / "store") as store:
        for number in range(2):
            store_under(store, IdempotencyKey.of(f"key {number + 5}", b""), number)
        now[0] -= 50
        store_under(store, KEY, 2)
        assert store.request(KEY) is not None


def test_a_damaged_row_of_a_request_leaves_with_what_is_forgotten(folder: Path) -> None:
    with new_store(folder / "store") as store:
        store_under(store, KEY)
        other = IdempotencyKey.of("key 2", b"")
        ids = store_under(store, other, 1)
        rows = catalog.Catalog(folder / "store" / "catalog", 1 << 24, writable=True)
        environment = rows._environment
        environment.write(lambda write: write.put(KEY.key, b"none", db=environment.handles[b"requests"]), lambda: None)
        rows.close()
        store.forget_session(1)
        known = store.request(other)
        assert store.request(KEY) is None and known is not None and known.sentence_ids == ids
        assert store.check().problems == ()
