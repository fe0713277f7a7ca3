"""The verbs of keys; serve itself is tested in tests/server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run


def test_keys_are_added_listed_and_revoked(livingkv: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "keys.json")
    code, key, errors = livingkv("keys", "add", file, "--tenant", "anna", "--name", "laptop", "--scope", "read")
    assert (code, errors) == (0, "") and key.startswith("lkv_")
    code, output, _ = livingkv("keys", "list", file, "--json")
    (entry,) = json.loads(output)
    assert code == 0 and (entry["tenant"], entry["scopes"], entry["name"]) == ("anna", ["read"], "laptop")
    assert key.strip() not in output and entry["id"] in livingkv("keys", "list", file)[1]
    assert livingkv("keys", "revoke", file, entry["id"])[0] == 0
    assert livingkv("keys", "list", file)[1] == ""


def test_bad_keys_are_one_line(livingkv: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    assert livingkv("keys", "list", str(file))[0] == 1
    assert "scope" in livingkv("keys", "add", str(file), "--scope", "all")[2]
    assert "tenant" in livingkv("keys", "add", str(file), "--tenant", "../x")[2]
    file.write_text("no JSON")
    code, _, errors = livingkv("keys", "revoke", str(file), "0")
    assert code == 1 and "it is not JSON" in errors and len(errors.splitlines()) == 1
