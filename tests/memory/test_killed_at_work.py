"""Writer and reader killed with SIGKILL while both are at work: everything acknowledged is served by whoever comes
next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from livingkv import Memory
from tests.memory.at_work import SETTINGS, note, said

pytestmark = pytest.mark.slow  # other processes

ROOT = Path(__file__).resolve().parents[2]


def start(store: Path, model: Path, task: str) -> subprocess.Popen[str]:
    """A process at work."""
    command = [sys.executable, "-m", "tests.memory.at_work", str(store), str(model), task]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )


def acknowledged(process: subprocess.Popen[str], n: int) -> int:
    """Wait for `n` more lines; the number on the last one."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(n)]
    assert lines[-1], "the process ended"
    return int(lines[-1])


def test_reader_and_writer_die_together(tmp_path: Path, tiny_folder: Path) -> None:
    store = tmp_path / "s"
    running = [start(store, tiny_folder, "write")]
    try:
        acknowledged(running[0], 1)
        running.append(start(store, tiny_folder, "read"))
        acknowledged(running[1], 2)
    finally:
        for process in running:
            process.kill()
        told, *_ = [process.communicate()[0] for process in running]
    last = int(told.splitlines()[-1]) if told else 0
    with Memory.open(store, read_only=True) as reader:
        assert reader.text("default").startswith(b"".join(map(note, range(last + 1))))
        for number in (0, last):
            answer = reader.ask(f"What opens door 5 of house {number}?", mode="extract")
            assert f"Door 5 of house {number} opens with {number * 100 + 5}." in answer.evidence[0].text
    with Memory.open(store, model=str(tiny_folder), settings=SETTINGS) as memory:  # the dead writer's lock is free
        assert memory.check().problems == ()
        assert memory.chat("Hello.", session="talk", max_tokens=2).turn == 1


def test_messages_are_there_together_or_not_at_all(tmp_path: Path, tiny_folder: Path) -> None:
    store = tmp_path / "s"
    process = start(store, tiny_folder, "tell")
    try:
        acknowledged(process, 3)
    finally:
        process.kill()
        told = process.communicate()[0]
    n_told = int(told.splitlines()[-1]) + 1 if told else 3
    talks = ["".join(str(message["content"]) for message in said(number)) for number in range(n_told + 1)]
    with Memory.open(store, model=str(tiny_folder), settings=SETTINGS) as memory:
        whole = [n for n in (n_told, n_told + 1) if memory.text("default") == "".join(talks[:n]).encode()]
        assert whole and memory.session("default").n_turns == 2 * whole[0]
        assert memory.check().problems == ()
        assert memory.add_messages(said(99)).turn == 2 * whole[0] + 2
