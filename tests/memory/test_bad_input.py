"""Bad input through the command line: exit code 1, one clear line that says what to do, and the store unharmed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from livingkv import Memory
from livingkv.cli_process import run
from livingkv.store import Disk
from tests.command_line import command_line
from tests.tiny import tiny_network, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path, tiny_folder: Path) -> Path:
    """A store with one source."""
    path = tmp_path / "store"
    with Memory.open(path, model=str(tiny_folder)) as memory:
        memory.ingest("note", text=b"The kettle is blue. The door code is 4711.")
    return path


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str], tiny_folder: Path) -> Callable[..., str]:
    """Runs a command line that must fail with one line on standard error, which is returned."""

    def fail(*argv: object) -> str:
        capfd.readouterr()
        code = run(command_line(), [str(word) for word in argv])
        out, err = capfd.readouterr()
        assert code == 1, (out, err)
        assert err.count("\n") == 1 and err.strip() and "Traceback" not in err
        return err

    return fail


@contextmanager
def unharmed(store: Path) -> Iterator[None]:
    """The store is whole and says the same after the block as before."""
    with Memory.open(store, read_only=True) as memory:
        before = memory.sessions(), memory.text("default")
    yield
    with Memory.open(store, read_only=True) as memory:
        assert (memory.sessions(), memory.text("default")) == before
        assert memory.check().problems == ()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.txt", b"", "empty"),
        ("blank.txt", b" \n\n\t ", ""),
        ("binary.bin", b"\x7fELF\0\0\1", ""),
        ("latin1.txt", b"caf\xe9 au lait", "UTF-8"),
        ("utf16.txt", "Grüße".encode("utf-16"), "UTF-16"),
    ],
)
def test_files_that_are_no_text(
    store: Path, refused: Callable[..., str], tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with unharmed(store):
        line = refused("ingest", store, path)
    assert name in line and said in line


def test_a_missing_file(store: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    with unharmed(store):
        assert "nowhere.txt" in refused("ingest", store, tmp_path / "nowhere.txt")


def test_fifty_megabytes_on_one_line(store: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    with path.open("wb") as file:
        for _ in range(50):
            file.write(b"word " * 200_000)
    with unharmed(store):
        assert "line 1" in refused("ingest", store, path)


def test_a_store_of_another_model(store: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    tiny_network("qwen2", seed=1).save_pretrained(other)
    tiny_tokenizer().save_pretrained(other)
    with unharmed(store):
        assert "model" in refused("ask", store, "What?", "--model", other)
        path = tmp_path / "new.txt"
        path.write_text("Something new.")
        assert "model" in refused("ingest", store, path, "--model", other)


def test_a_model_without_kv(refused: Callable[..., str], tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "mamba", vocab_size=304, hidden_size=32, num_hidden_layers=2, state_size=8, intermediate_size=64
    )
    folder = tmp_path / "mamba"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    path = tmp_path / "note.txt"
    path.write_text("A note.")
    line = refused("ingest", tmp_path / "store", path, "--model", folder)
    assert "mamba" in line and not (tmp_path / "store").exists()


def test_a_model_that_is_nowhere(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("A note.")
    assert "no-such-model" in refused("ingest", tmp_path / "store", path, "--model", "no-such-model")
    assert not (tmp_path / "store").exists()


def test_a_question_longer_than_the_hot_window(store: Path, refused: Callable[..., str]) -> None:
    with unharmed(store):
        assert "4096" in refused("ask", store, "why " * 6000)
        assert "question" in refused("ask", store, "  ")


@pytest.mark.slow
def test_a_store_in_use(store: Path, refused: Callable[..., str], tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("A note.")
    script = (
        "import sys, time; from livingkv import Memory; memory = Memory.open(sys.argv[1]); "
        "print('open', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(store)], stdout=subprocess.PIPE, env=environment
    ) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"open\n"
            assert str(holder.pid) in refused("ingest", store, path)
            assert run(command_line(), ["ask", str(store), "What is blue?", "--mode", "extract"]) in (0, 2)
        finally:
            holder.kill()
    assert run(command_line(), ["ingest", str(store), str(path)]) == 0


def test_no_permission(
    store: Path, refused: Callable[..., str], tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    path = tmp_path / "note.txt"
    path.write_text("A note.")
    with unharmed(store), monkeypatch.context() as patch:
        patch.setattr(Disk, "write", denied)
        assert "ermission" in refused("ingest", store, path)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "make_folder", denied)
        assert "ermission" in refused("ingest", tmp_path / "new", path, "--model", tiny_folder)
    assert "not a folder" in refused("ingest", path, path, "--model", tiny_folder)


@pytest.mark.slow
def test_no_disk_space(
    store: Path, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "note.txt"
    path.write_text("A note. " * 50)
    with unharmed(store), monkeypatch.context() as patch:
        patch.setattr(Disk, "write", full)
        assert "space" in refused("ingest", store, path)
    assert run(command_line(), ["ingest", str(store), str(path)]) == 0


def test_no_store_and_no_session(store: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    assert "no store" in refused("ask", tmp_path / "nowhere", "What?")
    with unharmed(store):
        assert "nobody" in refused("ask", store, "What?", "--session", "nobody")


def test_someone_elses_folder(refused: Callable[..., str], tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"jpg")
    path = tmp_path / "note.txt"
    path.write_text("A note.")
    assert "not a store" in refused("ingest", tmp_path / "photos", path, "--model", tiny_folder)
    assert [child.name for child in (tmp_path / "photos").iterdir()] == ["a.jpg"]
