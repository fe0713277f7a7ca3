"""Settings of serve: flag before environment before file before default; what is wrong is named with its place."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from livingkv.errors import InputError
from livingkv.model_choice import ModelChoice
from livingkv.server.options import ServerOptions
from livingkv.server.setting_kinds import LIMIT, SIZE, SWITCH, TEXTS
from livingkv.server.setting_sources import InForce, model_values, server_options, settings_in_force, shown
from livingkv.server.setting_table import SETTINGS, Setting
from livingkv.settings import Settings

OTHER: dict[str, Any] = {
    "folder": "stores", "host": "::1", "port": 99, "keys_file": "keys.json",
    "allowed_hosts": ("a.example", "b.example"), "allowed_origins": ("https://a.example",), "log_format": "json",
    "model": "qwen3-0.6b", "weights": "fp32", "backend": "experts", "ram_gb": 2.5, "pack": "my.pack",
    "dual_chunk": False, "key_folder": "/keys", "placement": "absolute", "codec": "lossless", "embedder": "states",
    "idle_s": 7.5, "stop_s": 2.0, "exact_limit_s": 3.5, "max_line_bytes": 1 << 30, "n_candidates": 9,
}  # fmt: skip
"""A value besides the default for each; 2 MB or so where it is a number that is not named here."""


def other(setting: Setting) -> Any:
    """A value that is allowed and not the default."""
    return OTHER.get(setting.name, (1 << 21) if setting.kind in (SIZE, LIMIT) else 1 << 12 | 64)


def as_text(value: Any) -> str:
    """As a variable has it."""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def as_toml(value: Any) -> str:
    """As a file has it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    return repr(value).lower() if isinstance(value, (bool, int, float)) else f'"{value}"'


def chosen(
    tmp_path: Path, toml: str = "", variables: dict[str, str] | None = None, flags: dict[str, object] | None = None
) -> dict[str, InForce]:
    """What is in force, by name."""
    path = tmp_path / "livingkv.toml"
    path.write_text(toml, "utf-8")
    return {each.setting.name: each for each in settings_in_force(flags or {}, variables or {}, path)}


def test_every_field_is_a_setting() -> None:
    names = {group: {each.name for each in SETTINGS if each.group == group} for group in ("service", "memory", "model")}
    assert names["service"] == {field.name for field in fields(ServerOptions)} - {"settings"}
    assert names["memory"] == {field.name for field in fields(Settings)}
    others = {"model", "backend", "ram_gb", "pack"}  # for the fields that are left out
    called_otherwise = {"spec", "experts_ram_bytes", "experts_pack"}
    assert names["model"] == {field.name for field in fields(ModelChoice)} - called_otherwise | others
    for key in ("name", "flag", "variable"):
        assert len({getattr(each, key) for each in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_flag_goes_before_a_variable_before_the_file_before_the_default(tmp_path: Path, setting: Setting) -> None:
    value = other(setting)
    file = f"{setting.name} = {as_toml(value)}"
    found = chosen(tmp_path)[setting.name]
    assert (found.value, found.origin) == (setting.default, "default") and found.value != value
    found = chosen(tmp_path, file)[setting.name]
    assert (found.value, found.origin) == (value, f"{setting.name} in {tmp_path / 'livingkv.toml'}")
    variables = {setting.variable: as_text(value)}
    wrong = f"{setting.name} = {{}}"  # of a kind that no setting has: it is not looked at
    found = chosen(tmp_path, wrong, variables)[setting.name]
    assert (found.value, found.origin) == (value, setting.variable)
    flag: object = list(value) if setting.kind is TEXTS else value if setting.kind is SWITCH else as_text(value)
    found = chosen(tmp_path, wrong, {setting.variable: "{}"}, {setting.name: flag})[setting.name]
    assert (found.value, found.origin) == (value, f"{setting.flag} ({setting.name})")


def test_all_of_them_reach_the_service(tmp_path: Path) -> None:
    toml = "\n".join(f"{each.name} = {as_toml(other(each))}" for each in SETTINGS)
    in_force = settings_in_force({}, {}, write(tmp_path, toml))
    options = server_options(in_force)
    assert options.folder == Path("stores") and options.keys_file == Path("keys.json")
    for each in SETTINGS:
        holder: object = options.settings if each.group == "memory" else options
        if each.group == "model":
            assert model_values(in_force)[each.name] == other(each)
        elif each.name not in ("folder", "keys_file"):
            assert getattr(holder, each.name) == other(each)


def write(tmp_path: Path, text: str) -> Path:
    """A settings file."""
    path = tmp_path / "s.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_value_of_another_kind_is_named_with_its_place(tmp_path: Path, setting: Setting) -> None:
    with pytest.raises(InputError) as caught:
        chosen(tmp_path, f"{setting.name} = {{}}")
    assert f"{setting.name} in {tmp_path}" in str(caught.value) and setting.kind.allowed in str(caught.value)
    with pytest.raises(InputError, match=re.escape(f"{setting.variable}: got")):
        chosen(tmp_path, "", {setting.variable: "a,,b" if setting.kind is TEXTS else "\0"})


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("port = 70000", "port in "),
        ("port = true", "port in .*a whole number is allowed"),
        ("port = 80.5", "a whole number is allowed"),
        ('host = "0.0.0.0"', "host in .*without --keys"),
        ("window_tokens = 100", "window_tokens in .*multiples of 64"),
        ("stop_s = -1", "stop_s in .*0 or more"),
        ("stop_s = nan", "stop_s in .*a number of seconds"),
        ("idle_s = 1e9", "idle_s in .*at most 86400"),
        ('ram_budget_bytes = "2 pounds"', "ram_budget_bytes in .*such as 2G"),
        ('disk_budget_bytes = "all"', "disk_budget_bytes in .*unlimited"),
        ('log_format = "xml"', "log_format in .*text or json is allowed"),
        ('allowed_hosts = "a"', "allowed_hosts in .*a list in a file"),
        ("prot = 1", "prot in .*not known.*known are folder, host, port"),
        ("[server]\nport = 1", "server in .*not known"),
        ("port = ", "it is not TOML"),
        ("port = 1\nport = 2", "it is not TOML"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, toml: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        server_options(settings_in_force({"folder": "s"}, {}, write(tmp_path, toml)))
    assert re.search(told, str(caught.value)) and "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(InputError, match="settings file"):
            settings_in_force({}, {}, path)
        with pytest.raises(InputError, match="settings file"):
            settings_in_force({}, {"LIVINGKV_SERVE_CONFIG": str(path)}, None)
    (tmp_path / "latin").write_bytes(b'host = "\xe9"')
    with pytest.raises(InputError, match="UTF-8"):
        settings_in_force({}, {}, tmp_path / "latin")


def test_a_variable_that_is_not_known_is_told() -> None:
    with pytest.raises(InputError, match=r"LIVINGKV_SERVE_PROT: .*LIVINGKV_SERVE_PORT"):
        settings_in_force({}, {"LIVINGKV_SERVE_PROT": "1"}, None)
    settings_in_force({}, {"LIVINGKV_CACHE": "/c", "LIVINGKV_OTHER": "1", "SERVE_PORT": "x"}, None)  # not its own


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    assert chosen(tmp_path, "port = 5", {"LIVINGKV_SERVE_PORT": ""})["port"].value == 5


def test_without_a_folder_it_says_how_to_name_one() -> None:
    with pytest.raises(InputError, match="STORE_DIR"):
        server_options(settings_in_force({}, {}, None))


def test_what_is_shown_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    odd = 'C:\\a "b"\té\x7f'
    first = settings_in_force({"host": odd, "allowed_hosts": ["a", odd]}, {"LIVINGKV_MODEL": "m"}, None)
    again = settings_in_force({}, {}, write(tmp_path, shown(first)))
    assert [(each.setting.name, each.value) for each in again] == [(each.setting.name, each.value) for each in first]
    lines = shown(first).splitlines()
    assert len(lines) == len(SETTINGS) and tomllib.loads(shown(first))["host"] == odd
    assert [line.split() for line in lines if line.endswith("# LIVINGKV_MODEL")] == [
        ["model", "=", '"m"', "#", "LIVINGKV_MODEL"]
    ]
