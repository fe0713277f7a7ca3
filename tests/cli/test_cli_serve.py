"""The verbs of keys, and the settings of serve; what it serves is tested in tests/server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from livingkv.server.setting_table import SETTINGS
from tests.cli.conftest import Run
from tests.command_line import command_line


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


def test_the_flags_are_those_of_the_table() -> None:
    (serve,) = (command for name, command in command_line().commands.items() if name == "serve")
    flags = {parameter.name: parameter.opts for parameter in serve.params}
    own = {"config", "show_settings", "debug"}
    assert set(flags) - own == {setting.name for setting in SETTINGS}
    assert [each for each in SETTINGS if each.flag.startswith("-") and each.flag not in flags[each.name]] == []


def test_settings_in_force_are_shown(livingkv: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "livingkv.toml"
    file.write_text(f'folder = "{tmp_path / "stores"}"\nport = 4\nn_waiting = 9\n')
    monkeypatch.setenv("LIVINGKV_SERVE_N_WAITING", "7")
    code, output, errors = livingkv(
        "serve", "--config", str(file), "--host", "::1", "--no-dual-chunk", "--show-settings"
    )
    assert (code, errors) == (0, "")
    lines = {line.split(" ")[0]: " ".join(line.split()) for line in output.splitlines()}
    assert lines["host"] == 'host = "::1" # --host (host)'
    assert lines["n_waiting"] == "n_waiting = 7 # LIVINGKV_SERVE_N_WAITING"
    assert lines["port"] == f"port = 4 # port in {file}"
    assert lines["dual_chunk"] == "dual_chunk = false # --dual-chunk (dual_chunk)"
    assert lines["idle_s"] == "idle_s = 60.0 # default"


def test_bad_settings_are_one_line(livingkv: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, output, errors = livingkv("serve", str(tmp_path / "s"), "--window", "100", "--show-settings")
    assert code == 1 and "window_tokens = 100" in output
    assert errors == "livingkv: --window (window_tokens): got 100; multiples of 64 are allowed\n"
    assert livingkv("serve", str(tmp_path / "s"), "--port", "http")[2].startswith("livingkv: --port (port): got 'http'")
    assert "name the folder" in livingkv("serve")[2]
    (tmp_path / "file").touch()
    assert "is not a folder" in livingkv("serve", str(tmp_path / "file"))[2]
    monkeypatch.setenv("LIVINGKV_SERVE_PROT", "1")
    assert livingkv("serve", str(tmp_path / "s"))[2].startswith("livingkv: LIVINGKV_SERVE_PROT")
