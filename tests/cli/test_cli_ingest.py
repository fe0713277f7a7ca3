"""Ingest over the real memory with a tiny model: what is checked before, what is left out, what broke off."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from livingkv import Memory, Settings
from livingkv.cli_process import run
from tests.cli.conftest import Run
from tests.cli.test_cli_keep import fails, names
from tests.command_line import command_line
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow  # seconds in all: other processes, many stores


def mixed_folder(folder: Path) -> Path:
    """A folder with one text and much that is none."""
    folder.mkdir()
    contents = {"a.txt": b"A text.", "b.bin": b"\0\1", "c.txt": b"a \xff b", "d.txt": b"", "e.txt": b"\xff\xfea\0"}
    contents |= {"late.txt": b"text " * 3000 + b"\0", ".hidden": b"\0"}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (folder / "link").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    return folder


def test_what_a_walk_leaves_out_is_told_at_the_end(tmp_path: Path, tiny_folder: Path, livingkv: Run) -> None:
    folder, store = mixed_folder(tmp_path / "mixed"), str(tmp_path / "s")
    code, output, errors = livingkv("ingest", store, str(folder), "--model", str(tiny_folder))
    assert code == 0 and [line.split(":")[0] for line in output.splitlines()] == [str(folder / "a.txt")]
    first, *rest = errors.splitlines()
    assert first == "livingkv: left out 7 files that cannot be read as text:"
    reasons = {line.split(":")[0].rsplit("/", 1)[1]: line.split(": ", 1)[1] for line in rest}
    assert reasons.pop("late.txt").endswith("text in UTF-8 is needed; extract the text first")
    assert reasons == {
        "b.bin": "binary", "c.txt": "not UTF-8 at byte 2", "d.txt": "empty", "e.txt": "UTF-16, not UTF-8",
        "link": "a link to a folder", "pipe": "no regular file",
    }  # fmt: skip
    code, output, errors = livingkv("ingest", store, str(folder), "--json")
    assert code == 0 and errors.startswith("livingkv: left out 7 files")
    document = json.loads(output)
    assert [source["skipped"] for source in document["sources"]] == [True]
    assert [Path(each["source"]).name for each in document["left_out"]][:4] == ["b.bin", "c.txt", "d.txt", "e.txt"]
    fails(livingkv, "ingest", store, str(folder / "late.txt"), word="NUL at byte 15,000")


def test_text_only_is_never_ignored(store: str, note: Path, tmp_path: Path, livingkv: Run) -> None:
    (tmp_path / "other.txt").write_text("Another text.")
    argv = ("ingest", store, str(tmp_path / "other.txt"), "--text-only")
    fails(livingkv, *argv, word="session 'default', which keeps KV; leave it out, or name a new session")
    assert livingkv(*argv, "--session", "log")[0] == 0
    (tmp_path / "other.txt").write_text("And more.")
    assert livingkv(*argv, "--session", "log")[0] == 0
    assert names(livingkv, store) == ["default", "log"]


class Untouchable(io.BytesIO):
    """Standard input that nobody may read yet."""

    def read(self, *_: object) -> bytes:
        raise AssertionError("standard input was read")


@pytest.mark.parametrize("wrong", ["folder", "parent", "session", "model", "text-only", "store's model", "codec"])
def test_standard_input_is_read_last(
    wrong: str, store: str, tiny_folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "somebody's").touch()
    (tmp_path / "file").touch()
    model = ["--model", str(tiny_folder)]
    argv, word = {
        "folder": ([str(tmp_path / "full"), "-", *model], "somebody's"),
        "parent": ([str(tmp_path / "file" / "s"), "-", *model], "file"),
        "session": ([store, "-", "--session", "a\nb"], "name"),
        "model": ([str(tmp_path / "new"), "-", "--model", str(tmp_path / "none")], "none"),
        "text-only": ([store, "-", "--text-only"], "keeps KV"),
        "store's model": ([store, "-", "--weights", "fp32"], "float32"),
        "codec": ([store, "-", "--codec", "lossless"], "lossless"),
    }[wrong]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Untouchable(), encoding="utf-8"))
    assert run(command_line(), ["ingest", *argv]) == 1
    output, errors = capsys.readouterr()
    assert output == "" and word in errors and errors.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_bad_standard_input_leaves_no_store(tmp_path: Path, tiny_folder: Path, livingkv: Run) -> None:
    argv = ("ingest", str(tmp_path / "s"), "-", "--model", str(tiny_folder))
    code, output, errors = livingkv(*argv, stdin=b"a \xff")
    assert (code, output) == (1, "") and "standard input" in errors and errors.count("\n") == 1
    assert not (tmp_path / "s").exists()


def broken_off(store: Path, source: Path) -> None:
    """An ingest of a file that ends after its first commit."""

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with (
        Memory.open(store, model=tiny_model(), settings=Settings(commit_tokens=64)) as memory,
        pytest.raises(InterruptedError),
    ):
        memory.ingest(source, progress=stop)


def test_a_file_that_changed_after_its_ingest_broke_off(tmp_path: Path, livingkv: Run) -> None:
    store, source = tmp_path / "s", tmp_path / "doors.txt"
    source.write_text("".join(f"Door {i} opens with {1000 + i * 7}. " for i in range(60)))
    broken_off(store, source)
    with Memory.open(store, model=tiny_model()) as memory:
        n_old = memory.session("default").n_sentences
        assert n_old > 2
        source.write_text("The doors are gone. A wall is there.")
        result = memory.ingest(source)
        assert (result.n_stale_sentences, result.n_sentences) == (n_old, 2)
        assert memory.ingest(source).skipped
        source.write_text("Now a hedge is there.")
        assert memory.ingest(source).n_stale_sentences == n_old
        memory.forget(session="default", source=str(source))
        result = memory.ingest(source)
        assert (result.skipped, result.n_stale_sentences) == (False, 0)
        assert memory.session("default").n_sentences == 1


def test_the_command_line_says_so(store: str, note: Path, livingkv: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, output, errors = livingkv("ingest", store, str(note), "--session", "new", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(output)["sources"][0]["n_stale_sentences"] == 0
    real = Memory.ingest

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    note_two = note.with_name("two parts.txt")
    note_two.write_text("The shed is blue. " * 2000)
    with Memory.open(store, settings=Settings(commit_tokens=64)) as memory, pytest.raises(InterruptedError):
        real(memory, note_two, progress=stop)
    note_two.write_text("The shed is red.")
    code, output, errors = livingkv("ingest", store, str(note_two), "--json")
    assert code == 0 and errors.count("\n") == 1
    assert f"livingkv forget {store} --session default --source '{note_two}', then ingest it again" in errors
    assert json.loads(output)["sources"][0]["n_stale_sentences"] > 0


def test_the_model_is_made_ready_with_progress(
    tmp_path: Path, note: Path, tiny_folder: Path, livingkv: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Bar:
        """In place of the bar that a terminal would show."""

        def __enter__(self) -> Callable[[str, int, int], None]:
            return lambda phase, done, total: seen.append(phase)

        def __exit__(self, *_: object) -> None:
            seen.append("gone")

    monkeypatch.setattr("livingkv.cli_ingest.phase_bar", Bar)
    assert livingkv("ingest", str(tmp_path / "s"), str(note), "--model", str(tiny_folder))[0] == 0
    assert seen == ["load", "load", "gone"]
