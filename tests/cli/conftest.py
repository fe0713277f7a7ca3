"""The command line over the real memory with a tiny random model: a way to run it, and stores to run it on."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from livingkv.cli_process import run
from livingkv.model_choice import ModelChoice
from livingkv.model_fetch import Progress
from livingkv.models import LoadedModel
from tests.command_line import command_line
from tests.in_memory import tmp_path as tmp_path

Run = Callable[..., tuple[int, str, str]]
Load = Callable[..., LoadedModel]


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs command lines in this process: arguments in, exit code, standard output and standard error out."""

    def call(*argv: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = run(command_line(), argv)
        output, errors = capsys.readouterr()
        return code, output, errors

    return call


@pytest.fixture(scope="session")
def load_once(tiny_folder: Path) -> Load:
    """`ModelChoice.load` that keeps the tiny model, by all that was chosen; any other is loaded anew."""
    load, kept = ModelChoice.load, dict[ModelChoice, LoadedModel]()

    def found(choice: ModelChoice, progress: Progress | None = None) -> LoadedModel:
        if choice not in kept:
            loaded = load(choice, progress)
            if str(choice.spec) != str(tiny_folder) or choice.experts_ram_bytes is not None:
                return loaded
            kept[choice] = loaded
        return kept[choice]

    return found


@pytest.fixture(name="livingkv")
def run_in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, load_once: Load
) -> Run:
    """The command line over the real memory. The tiny model is loaded once for all tests of the process."""
    monkeypatch.setattr(ModelChoice, "load", load_once)
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path / "cache"))
    return runner(monkeypatch, capsys)


@pytest.fixture(scope="session", name="note")
def note_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short note."""
    note = tmp_path_factory.mktemp("notes") / "note.txt"
    note.write_text("The shed is blue. The code of the shed is 4471. Nobody paints it. The river is near.")
    return note


@pytest.fixture(scope="session", name="filled")
def filled_once(tmp_path_factory: pytest.TempPathFactory, note: Path, tiny_folder: Path) -> Path:
    """A store that holds the note, to be copied."""
    store = tmp_path_factory.mktemp("filled") / "store"
    assert run(command_line(), ["ingest", str(store), str(note), "--model", str(tiny_folder)]) == 0
    return store


@pytest.fixture(name="store")
def store_with_note(tmp_path: Path, filled: Path) -> str:
    """A store of the test's own that holds the note."""
    return str(shutil.copytree(filled, tmp_path / "store"))


@pytest.fixture(scope="session", name="full")
def full_once(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A store with several pages in two sessions, doors and diary, to be copied."""
    folder = tmp_path_factory.mktemp("full")
    (folder / "doors.txt").write_text("".join(f"Door {i} opens with {1000 + i * 7}.\n\n" for i in range(30)))
    (folder / "diary.txt").write_text("The Zanzibarquince is hidden below the stairs. It rained.")
    (folder / "list.txt").write_text("Bread, salt and lamp oil are missing.")
    store, model = str(folder / "store"), str(tiny_folder)
    group = command_line()
    assert run(group, ["ingest", store, str(folder / "doors.txt"), "-s", "doors", "--model", model]) == 0
    diary = [str(folder / "diary.txt"), str(folder / "list.txt")]
    assert run(group, ["ingest", store, *diary, "-s", "diary"]) == 0
    return folder / "store"


@pytest.fixture(name="two")
def store_with_two_sessions(tmp_path: Path, full: Path) -> str:
    """A store of the test's own with the sessions doors and diary."""
    return str(shutil.copytree(full, tmp_path / "two"))
