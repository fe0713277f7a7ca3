"""Work of one experiment shared by processes: which part is whose, and lines that all of them append to one file.

Knows items and JSON lines; knows nothing of what is measured. A file of lines is also what a broken-off run goes on
from.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[1]
T = TypeVar("T")


def part_of(items: Sequence[T], shard: str) -> list[T]:
    """The items of shard "I/N": every N-th from the I-th on. All of them where `shard` is empty.

    Raises ValueError for anything else.
    """
    if not shard:
        return list(items)
    first, step = (int(part) for part in shard.split("/"))
    if not 0 <= first < step:
        raise ValueError(f"shard {shard!r}: I/N with 0 <= I < N is allowed")
    return list(items[first::step])


def append_line(path: Path, row: dict[str, Any]) -> None:
    """One JSON document as a line at the end of the file, whole, whoever else appends at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The documents of such a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def run_shards(script: Path, arguments: Sequence[str], n: int) -> None:
    """Runs the script n times at once, each with its --shard, and waits. Raises RuntimeError when one of them fails."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    children = [
        subprocess.Popen([sys.executable, str(script), *arguments, "--shard", f"{index}/{n}"], env=environment)
        for index in range(n)
    ]
    if failed := [index for index, child in enumerate(children) if child.wait() != 0]:
        raise RuntimeError(f"shards {failed} of {n} failed; their errors stand above; what they wrote is kept")
