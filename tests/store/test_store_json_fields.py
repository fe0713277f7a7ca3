"""What stands in a store's JSON files and lines: every field has its type and range, or one line says which has not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from livingkv.errors import FormatUnsupported, RecordDamaged, StoreError, StoreLocked
from livingkv.results import Erased
from livingkv.store import erase_store, what_erasing_takes
from livingkv.store.migrating import stored_version
from tests.store.json_cases import HUGE, NO_OBJECTS, one_line, values
from tests.store.store_cases import filled_store, new_store, read_store, write_store


@pytest.mark.parametrize("data", NO_OBJECTS)
def test_a_manifest_that_is_no_object(folder: Path, data: bytes) -> None:
    filled_store(folder / "s")
    path = folder / "s" / "manifest.json"
    path.write_bytes(data)
    for read in (read_store, write_store, lambda root: stored_version(root)):
        with pytest.raises(RecordDamaged) as caught:
            read(folder / "s")
        one_line(caught.value, path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", True),
        ("format", "1"),
        ("format", 0),
        ("format", -1),
        ("format", HUGE),
        ("format", 1.0),
        ("features", 5),
        ("features", "encryption"),
        ("features", {"encryption": 1}),
        ("features", [1]),
        ("features", None),
        ("store_id", 5),
        ("store_id", "00 " * 16),
        ("store_id", "0" * 31),
        ("store_id", None),
        ("fingerprint", []),
        ("fingerprint", {}),
        ("labels", []),
        ("labels", {"model": 5}),
        ("labels", {"model": "\ud800"}),
        ("labels", None),
        ("disk_budget_bytes", True),
        ("disk_budget_bytes", 0),
        ("disk_budget_bytes", 1.5),
        ("disk_budget_bytes", HUGE),
    ],
)
def test_a_field_of_the_manifest(folder: Path, name: str, value: object) -> None:
    filled_store(folder / "s")
    path = folder / "s" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(RecordDamaged, match=name) as caught:
        read_store(folder / "s")
    one_line(caught.value, path)


@pytest.mark.parametrize("value", [2, (1 << 63) - 1])
def test_a_newer_manifest_is_told_shortly(folder: Path, value: int) -> None:
    filled_store(folder / "s")
    path = folder / "s" / "manifest.json"
    path.write_text(json.dumps({"format": value}))
    with pytest.raises(FormatUnsupported, match="update livingkv") as caught:
        read_store(folder / "s")
    one_line(caught.value, path)


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_manifest(folder: Path, data: st.DataObject) -> None:
    root, path = folder / "s", folder / "s" / "manifest.json"
    if not root.exists():
        filled_store(root)
        (folder / "good").write_bytes(path.read_bytes())
    good = json.loads((folder / "good").read_text())
    changes = data.draw(st.dictionaries(st.sampled_from(sorted([*good, "disk_budget_bytes"])), values, min_size=1))
    path.write_text(json.dumps(good | changes))
    try:
        with read_store(root) as store:
            assert store.check().problems == ()
    except StoreError as error:
        assert "\n" not in str(error)
    path.write_bytes((folder / "good").read_bytes())
    with read_store(root) as store:
        assert store.check().problems == ()


@pytest.mark.parametrize("data", NO_OBJECTS)
def test_a_mark_of_erasing_that_cannot_be_read_counts_nothing(folder: Path, data: bytes) -> None:
    filled_store(folder / "s")
    (folder / "s" / "erasing.json").write_bytes(data)
    assert what_erasing_takes(folder / "s").n_sessions is None
    erase_store(folder / "s")


BAD_COUNTS: list[object] = ["7", True, -1, 1.5, HUGE, []]
BAD_MARKS: list[tuple[str, object]] = [("paths", "/"), ("paths", [5]), ("paths", None), ("size_bytes", None)]
BAD_MARKS += [(name, value) for name in ("n_sessions", "n_bytes", "size_bytes") for value in BAD_COUNTS]


@pytest.mark.parametrize(("name", "value"), BAD_MARKS)
def test_a_field_of_a_mark_of_erasing(folder: Path, name: str, value: object) -> None:
    filled_store(folder / "s")
    found = what_erasing_takes(folder / "s")
    good = {each: getattr(found, each) for each in Erased.__slots__}
    (folder / "s" / "erasing.json").write_text(json.dumps(good))
    assert what_erasing_takes(folder / "s").n_sessions == 1
    (folder / "s" / "erasing.json").write_text(json.dumps(good | {name: value}))
    assert what_erasing_takes(folder / "s").n_sessions is None


@pytest.mark.parametrize("data", [b"[" * 4000, b'{"pid": [1]}', b'{"pid": "a\\nb"}', b"[]", b"5", b'{"pid": true}'])
def test_whatever_the_lock_says_about_its_holder(folder: Path, data: bytes) -> None:
    with new_store(folder / "s"):
        (folder / "s" / "lock").write_bytes(data)
        with pytest.raises(StoreLocked, match="another writer writes to it"):
            write_store(folder / "s")


def changed_key(data: bytearray, at: int, value: bytes) -> bytes:
    """A key file with other bytes in it and a right checksum."""
    data[at : at + len(value)] = value
    return bytes(data[:72]) + xxh3_64_intdigest(bytes(data[:72])).to_bytes(8, "little")


CHANGES: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    lambda data: data[:-1],
    lambda data: data + b"\0",
    lambda data: data * 1000,
    lambda data: changed_key(bytearray(data), 0, b"LKVKEX"),
    lambda data: changed_key(bytearray(data), 8, bytes(16)),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_file_with_a_right_checksum(folder: Path, change: Callable[[bytes], bytes]) -> None:
    with new_store(folder / "s") as store:
        store.create_session("diary", encrypt=True)
    (key,) = (folder / "s" / "keys").iterdir()
    key.write_bytes(change(key.read_bytes()))
    with read_store(folder / "s") as store:
        assert not store.has_key(1)
        (problem,) = store.check().problems
        one_line(RecordDamaged(problem), key)
