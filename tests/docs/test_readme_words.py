"""Settings, verbs, options, exit codes, modes, errors and names in the README are those of the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args

import pytest
from typer.core import TyperGroup

import livingkv
import livingkv.client
from livingkv import errors
from livingkv.cli import AskMode
from livingkv.cli_process import ExitCode
from livingkv.model_sources import HUB_IDS, PUBLISHED
from livingkv.results import Answer, Evidence, Timings
from livingkv.settings import Settings
from tests.command_line import command_line
from tests.docs.modules import files
from tests.docs.pages import blocks, code_words, read, table

README = read("README.md")
WORDS = code_words(README)


def verbs() -> Iterator[tuple[str, set[str]]]:
    """Every verb of the command line, such as "model fetch", with its options."""

    def walk(group: TyperGroup, before: str) -> Iterator[tuple[str, set[str]]]:
        for name, command in group.commands.items():
            if isinstance(command, TyperGroup):
                yield from walk(command, f"{name} ")
            else:
                yield before + name, {option for parameter in command.params for option in parameter.opts}

    yield from walk(command_line(), "")


def test_the_settings_are_those_of_the_code() -> None:
    want = [(field.name, str(field.default)) for field in fields(Settings)]
    assert [(name, default) for name, default, _ in table(README, "setting")] == want


def test_every_verb_is_shown() -> None:
    shown = "".join(blocks(README, "sh"))
    assert [verb for verb, _ in verbs() if not re.search(rf"\blivingkv {verb}\b", shown)] == []


def test_options_in_the_text_exist() -> None:
    known = {option for _, options in verbs() for option in options} | {"--help"}
    assert {word for word in WORDS if word.startswith("--")} <= known


def test_modes_are_those_of_the_command_line() -> None:
    assert sorted(row[0] for row in table(README, "mode")) == sorted(get_args(AskMode))


def test_exit_codes_are_those_of_the_code() -> None:
    assert [int(code) for code, _ in table(README, "exit code")] == sorted(ExitCode)


def test_the_fields_of_the_json_are_all_named() -> None:
    named = {field.name for kind in (Answer, Evidence, Timings) for field in fields(kind)}
    assert named <= WORDS


def test_names_of_classes_exist() -> None:
    known = set(dir(errors)) | set(livingkv.__all__) | set(livingkv.client.__all__)
    assert {word for word in WORDS if re.fullmatch(r"[A-Z]+[a-z]\w*", word)} <= known


def test_the_branches_of_the_error_tree_are_named() -> None:
    branches = {kind.__name__ for kind in errors.LivingKVError.__subclasses__()}
    assert branches <= WORDS


def test_variables_exist() -> None:
    source = read("Makefile") + "".join(path.read_text("utf-8") for path in files().values())
    named = {word for word in WORDS if re.fullmatch(r"[A-Z]+(_[A-Z]+)*", word)}
    assert {"LIVINGKV_MODEL", "LIVINGKV_CACHE"} <= named
    assert [word for word in sorted(named) if not re.search(rf"\b{word}\b", source)] == []


def test_short_names_of_models_exist() -> None:
    named = {word for word in WORDS if re.fullmatch(r"qwen[\w.-]+", word)}
    assert named and named <= {*PUBLISHED, *HUB_IDS}


@pytest.mark.parametrize("row", table(README, "experiment"), ids=lambda row: row[-1][:30])
def test_a_measured_number_is_in_its_file(row: list[str]) -> None:
    text, _, link = row[-1].rpartition(" ([raw](")
    known = list(numbers(json.loads(read(link.rstrip(")")))))
    said = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)
    assert said and [number for number in said if not any(rounds_to(value, number) for value in known)] == []


def numbers(document: Any) -> Iterator[float]:
    """Every number in a JSON document."""
    if isinstance(document, dict):
        document = list(document.values())
    if isinstance(document, list):
        for item in document:
            yield from numbers(item)
    elif isinstance(document, (int, float)):
        yield float(document)


def rounds_to(value: float, shown: str) -> bool:
    """Whether a value, rounded to as many decimals as are shown, is what is shown."""
    return f"{value:.{len(shown.partition('.')[2])}f}" == shown.replace(",", "")


def test_no_name_of_a_settings_key_is_made_up() -> None:
    snippets = "".join(blocks(README, "python"))
    used = {key for call in re.findall(r"Settings\(([^)]*)\)", snippets) for key in re.findall(r"(\w+)=", call)}
    assert used and used <= {field.name for field in fields(Settings)}
