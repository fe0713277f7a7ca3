"""Whoever follows the README gets no error: every shell line and every Python snippet runs, with a tiny model."""

from __future__ import annotations

import io
import re
import runpy
import shlex
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest

from livingkv.cli_process import ExitCode, run
from tests.command_line import command_line
from tests.docs.modules import ROOT
from tests.docs.pages import blocks, read
from tests.server.serving import serving

pytestmark = pytest.mark.slow  # seconds in all: other processes, many stores

SERVICE = "http://127.0.0.1:8345"
README = read("README.md")
MAKEFILE = read("Makefile")


def commands() -> list[list[str]]:
    """Every shell line as words, comments left out."""
    lines = "".join(blocks(README, "sh")).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def piped_text(words: list[str]) -> bytes:
    """What the part of a command before the pipe writes: echo and cat are known."""
    if words[0] == "echo":
        return (" ".join(words[1:]) + "\n").encode()
    assert words[0] == "cat", f"a command that this test cannot follow: {words}"
    return b"".join(Path(name).read_bytes() for name in words[1:])


def test_the_shell_lines_of_the_first_use_run(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    n_run = 0
    for words in commands():
        if words[0] == "python":
            monkeypatch.setattr(sys, "argv", words[1:])
            runpy.run_path(str(ROOT / words[1]), run_name="__main__")
            assert "is in" in capsys.readouterr().out
        if "livingkv" not in words:
            continue
        verb = words.index("livingkv")
        before, argv = words[:verb], words[verb + 1 :]
        if argv[0] == "serve" or argv[:2] == ["keys", "revoke"]:
            continue  # the first does not end, the second needs an id that keys add has printed
        stdin = piped_text(before[:-1]) if before else b""
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = run(command_line(), argv)
        output, errors = capsys.readouterr()
        assert code in (ExitCode.OK, ExitCode.LOW_CONFIDENCE) and "Traceback" not in errors, (argv, errors)
        assert output or argv[0] == "chat", argv
        n_run += 1
    assert n_run > 10


@pytest.mark.parametrize("snippet", blocks(README, "python"), ids=lambda snippet: str(len(snippet)))
def test_a_python_snippet_runs(snippet: str, clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as service:
        if SERVICE in snippet:
            snippet = snippet.replace(SERVICE, service.enter_context(serving(clone / "served")).url)
        exec(compile(snippet, "README.md", "exec"), {"__name__": "__main__"})
    output = capsys.readouterr().out
    assert "4471" in output or "True" in output.split(), output


def test_the_other_shell_lines_name_what_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    project = tomllib.loads(read("pyproject.toml"))["project"]
    for words in commands():
        if words[0] == "make":
            assert words[1] in targets
            assert {word.partition("=")[0] for word in words[2:]} <= make_variables()
        elif words[0] == "pip":
            extras = {extra for word in words for extra in re.findall(r"^\.\[(\w+)\]$", word)}
            assert words[1] == "install" and extras <= set(project["optional-dependencies"])
        elif words[0] != "python":
            assert "livingkv" in words, f"no test follows: {words}"


def test_make_targets_and_variables_in_the_text_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)", README)) <= targets


def test_the_readme_asks_for_the_python_that_the_package_needs() -> None:
    lowest = re.search(r"Python (3\.\d+)", README)
    assert lowest and tomllib.loads(read("pyproject.toml"))["project"]["requires-python"] == f">={lowest[1]}"


def make_variables() -> set[str]:
    """The variables that the head of the Makefile explains."""
    return set(re.findall(r"^#   ([A-Z_]+)=", MAKEFILE, re.MULTILINE))


def test_every_file_that_a_command_names_exists() -> None:
    named = {word for words in commands() for word in words if word.startswith("examples/")}
    assert named and [name for name in sorted(named) if not (ROOT / name).exists()] == []
