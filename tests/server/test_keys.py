"""The keys file: what it holds, what is refused in it, and two who change it at once."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from livingkv.errors import InputError
from livingkv.server.keys import KeyRing, make_key, read_keys, revoke_key


def test_a_keys_file_that_is_damaged_or_gone_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = make_key(file, "anna", "", ["write"])
    ring = KeyRing(file)
    assert ring.find(key) is not None and ring.find(key[:-1] + ("A" if key[-1] != "A" else "B")) is None
    file.write_text("{}")
    assert ring.find(key) is None
    file.unlink()
    assert ring.find(key) is None
    with pytest.raises(InputError, match="keys file"):
        KeyRing(file)


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_the_keys_file_lets_nobody_in_and_holds_nobody_up(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = make_key(file, "anna", "", ["write"])
    ring = KeyRing(file)
    file.unlink()
    os.mkfifo(file)
    assert ring.find(key) is None
    with pytest.raises(InputError, match="keys file"):
        read_keys(file)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scopes", "write"), ("scopes", []), ("scopes", ["root"]), ("digest", "\u00e4"), ("digest", ""), ("salt", "xx"),
        ("tenant", ".."), ("tenant", 1), ("key_id", None), ("created_s", "now"), ("created_s", float("inf")),
        ("created_s", -1), ("forwards_users", 1), ("name", ["a"]),
    ],
)  # fmt: skip
def test_a_keys_file_with_a_field_of_another_kind_lets_nobody_in(tmp_path: Path, field: str, value: object) -> None:
    file = tmp_path / "keys.json"
    key = make_key(file, "anna", "", ["write"])
    ring = KeyRing(file)
    written = json.loads(file.read_text())
    written["keys"][0][field] = value
    file.write_text(json.dumps(written))
    assert ring.find(key) is None
    with pytest.raises(InputError, match=field):
        read_keys(file)


def test_a_keys_file_of_a_later_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    make_key(file, "anna", "", ["write"])
    later = file.read_text().replace('"version": 1', '"version": 2')
    file.write_text(later)
    with pytest.raises(InputError, match="version is 2"):
        make_key(file, "anna", "", ["write"])
    assert file.read_text() == later


def test_keys_that_are_made_and_revoked_at_once_are_all_kept_or_gone(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    for _ in range(8):
        make_key(file, "old", "", ["read"])
    old = [key.key_id for key in read_keys(file)]
    with ThreadPoolExecutor(4) as pool:
        revoked = [pool.submit(revoke_key, file, key_id) for key_id in old]
        made = {key.split("_")[1] for key in pool.map(lambda _: make_key(file, "new", "", ["read"]), range(8))}
    assert all(each.result().tenant == "old" for each in revoked)
    assert {key.key_id for key in read_keys(file)} == made and len(made) == 8


def test_a_keys_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="keys file"):
        make_key(tmp_path / "file" / "keys.json", "anna", "", ["read"])


@pytest.mark.parametrize("tenant", ["", "..", "a/b", "A", "a" * 65, "-a", "a\n"])
def test_a_tenant_that_could_be_a_path_is_refused(tmp_path: Path, tenant: str) -> None:
    with pytest.raises(InputError, match="tenant"):
        make_key(tmp_path / "keys.json", tenant, "", ["read"])
