"""A process that writes its index again and again does not grow by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from livingkv.server.heap import share_heaps

WRITES = """
import random, sys
from pathlib import Path
from livingkv.index import Entry, Index
from livingkv.server.heap import share_heaps

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

share_heaps()
words, chosen = [f"word{n}" for n in range(3000)], random.Random(0)
index, first = Index.recreate(Path(sys.argv[1]), None), 0
for commit in range(30):
    index.add([Entry(first + n, 1, " ".join(chosen.choices(words, k=12))) for n in range(520)])
    first += 520
    index.commit(first)
    if commit == 4:
        before = anonymous()
print(anonymous() - before)
"""


@pytest.mark.slow
def test_commits_of_the_index_leave_the_heap_as_it_was(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WRITES, str(tmp_path / "index")]
    grown = int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert grown < 24 << 20


def test_the_c_library_is_told() -> None:
    assert share_heaps()
