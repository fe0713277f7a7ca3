"""docs/SERVE.md has every setting and every metric of the code, and what it says of them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from livingkv.server.census import Census
from livingkv.server.counters import Counters
from livingkv.server.experts_census import ExpertsCensus
from livingkv.server.guard import OPEN_PATHS
from livingkv.server.setting_sources import server_options, settings_in_force
from livingkv.server.setting_table import CONFIG_VARIABLE, SETTINGS, setting_called
from livingkv.server.states_census import StatesCensus
from tests.docs.pages import blocks, code_words, read, table

PAGE = read("docs/SERVE.md")
WORDS = code_words(PAGE)
KINDS = {"counter": "_total", "info": "_info"}


def exported() -> dict[str, tuple[str, str]]:
    """Every metric: its type and its help."""
    counters = Counters()
    counters.registry.register(Census(Path(), tuple))
    counters.registry.register(ExpertsCensus(lambda: None))
    counters.registry.register(StatesCensus(dict))
    return {
        family.name + KINDS.get(family.type, ""): (family.type, family.documentation)
        for family in counters.registry.collect()
    }


def test_the_settings_are_those_of_the_code() -> None:
    want = [
        [
            each.name, each.flag, each.variable, each.kind.name, each.unit,
            "" if each.default in (None, ()) else str(each.default), each.meaning,
        ]
        for each in SETTINGS
    ]  # fmt: skip
    assert table(PAGE, "setting") == want


def test_the_metrics_are_those_of_the_code() -> None:
    rows = {name: (kind, meaning) for name, kind, _, meaning in table(PAGE, "metric")}
    assert rows == exported()


def test_words_in_the_text_exist() -> None:
    settings = {each.name for each in SETTINGS}
    flags = {"--config", "--show-settings", "--no-dual-chunk", "--scope", *(each.flag for each in SETTINGS)}
    known = {
        CONFIG_VARIABLE,
        "LIVINGKV_CACHE",
        "LIVINGKV_THREADS",
        "LIVINGKV_SERVE_",
        *(each.variable for each in SETTINGS),
    }
    named = {word for text in WORDS for word in re.findall(r"LIVINGKV_\w*", text)}
    assert named <= known and settings <= WORDS
    assert {word.split()[0] for word in WORDS if word.startswith("--")} <= flags
    metrics = {word for text in WORDS for word in re.findall(r"livingkv_\w+", text)}
    assert metrics <= set(exported())
    assert set(OPEN_PATHS) <= WORDS


def test_the_example_of_a_file_is_one(tmp_path: Path) -> None:
    (example,) = blocks(PAGE, "toml")
    path = tmp_path / "s.toml"
    path.write_text(example)
    assert server_options(settings_in_force({}, {}, path)).max_tenant_bytes == 50 << 30
    assert all(setting_called(key) for key in tomllib.loads(example))


def test_the_example_of_a_line_of_the_log_is_one() -> None:
    (example,) = blocks(PAGE, "json")
    assert json.loads(example)["message"] == "request" and len(example.splitlines()) == 1
