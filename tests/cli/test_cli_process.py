"""The command line as a process: pipes, signals, locales, terminals, start-up time."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from livingkv.cli_process import ExitCode
from tests.cli.small_store import make_small_store

pytestmark = pytest.mark.slow  # seconds in all: other processes, many stores

ROOT = Path(__file__).parents[2]
FAKE = [sys.executable, "-m", "tests.cli.fake_memory"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run_fake(*argv: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """One command line over the fake memory in a process of its own."""
    return subprocess.run(
        [*FAKE, *argv], input=stdin, capture_output=True, cwd=ROOT, env=ENVIRONMENT | environment, timeout=60
    )


def test_output_is_utf8_in_every_locale(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    for locale in ("C", "POSIX", "C.UTF-8"):
        done = run_fake("ingest", store, "-", stdin="naïve 世界 🙂".encode(), LC_ALL=locale, LANG=locale)
        assert done.returncode == 0, done.stderr
        done = run_fake("ask", store, "世界", LC_ALL=locale, LANG=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert "naïve 世界 🙂" in done.stdout.decode() or locale != "C.UTF-8"
        done = run_fake("ask", store, "naïve", "--json", LC_ALL=locale, LANG=locale)
        assert json.loads(done.stdout)["answer"] == "naïve 世界 🙂"


def test_file_names_that_are_not_utf8_still_make_json(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.txt"
    try:
        Path(os.fsdecode(name)).write_text("A text.")
    except OSError:
        pytest.skip("this file system refuses such names")
    done = run_fake("ingest", str(tmp_path / "store"), os.fsdecode(name), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sources"][0]["source"].encode("utf-8", "surrogateescape") == name


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    make_small_store(tmp_path / "store")
    process = subprocess.Popen(
        [*FAKE, "stats", str(tmp_path / "store")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=ENVIRONMENT,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == ExitCode.PIPE_CLOSED
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_standard_output_is_one_line(tmp_path: Path) -> None:
    make_small_store(tmp_path / "store")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*FAKE, "stats", str(tmp_path / "store"), "--json"],
            stdout=full, stderr=subprocess.PIPE, cwd=ROOT, env=ENVIRONMENT, timeout=60,
        )  # fmt: skip
    assert done.returncode == ExitCode.FAILED
    assert done.stderr.count(b"\n") == 1
    assert b"No space left" in done.stderr


def test_interrupt_leaves_a_clean_line_and_closes_the_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()  # a job in the background, such as this test may be, has SIGINT ignored
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *FAKE, "ask", str(tmp_path / "store"), "wait"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=ENVIRONMENT,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == b"waiting\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert (output, errors) == (b"", b"\n")
    assert (tmp_path / "store" / "closed").exists()


def read_until(descriptor: int, pattern: bytes) -> bytes:
    """Reads a terminal until the pattern was seen."""
    seen = b""
    while re.search(pattern, seen, re.DOTALL) is None:
        assert select.select([descriptor], [], [], 30)[0], seen
        seen += os.read(descriptor, 4096)
    return seen


@pytest.mark.parametrize("json_lines", [False, True])
def test_chat_at_a_terminal(tmp_path: Path, json_lines: bool) -> None:
    ours, theirs = pty.openpty()
    argv = [*FAKE, "chat", str(tmp_path / "store"), "--recall", "session", *(["--json"] if json_lines else [])]
    process = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=ENVIRONMENT | {"TERM": "dumb"}
    )
    os.close(theirs)
    read_until(ours, b"> ")
    os.write(ours, b"hello\n")
    seen = read_until(ours, b"HELLO.*> ")
    assert (b"[turn 1, resume" in seen) is not json_lines and b"[recalled" not in seen
    os.write(ours, b"where?\n")
    seen = read_until(ours, b"WHERE.*> ")
    told = b"[recalled from notes, session week, document: A session\\x07 note.]"
    assert (told in seen) is not json_lines
    os.write(ours, b"\x04")
    assert process.wait(timeout=30) == 0
    os.close(ours)


def test_light_verbs_load_nothing_heavy(tmp_path: Path) -> None:
    heavy = ("torch", "transformers", "tokenizers", "faiss", "tantivy", "fastapi", "mcp")
    code = (
        "import sys, typer; from livingkv.cli import app; from livingkv.cli_process import run\n"
        "code = run(typer.main.get_group(app), sys.argv[1:])\n"
        f"sys.exit(code or [name for name in {heavy} if name in sys.modules] or 0)"
    )
    make_small_store(tmp_path / "store")
    for argv in (["--help"], ["sessions", str(tmp_path / "store")], ["stats", str(tmp_path / "store")]):
        subprocess.run([sys.executable, "-c", code, *argv], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
