"""SIGKILL at random times: what was durable is there, nothing is there twice, and the rest can be fed again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from livingkv.errors import IndexDamaged
from livingkv.index import Entry, Index
from tests.index.word_embedder import WordEmbedder

_WRITER = """
import sys
from pathlib import Path
from livingkv.index import Entry, Index
from tests.index.word_embedder import WordEmbedder

index = Index.open(Path(sys.argv[1]), WordEmbedder(), "write")
first = 0 if index.high_water is None else index.high_water + 1
print("open", first, flush=True)
for step in range(first, first + 10_000):
    index.add([Entry(step, step % 3, f"unique{step} note of the day")])
    index.commit(step)
    if step % 3 == 0:
        index.flush()
        print("durable", step, flush=True)
    if step % 10 == 9:
        index.remove(sentence_ids=[step - 5])
        print("removed", step - 5, flush=True)
"""


def run_and_kill(path: Path, n_lines: int, seconds: float) -> tuple[int, set[int]]:
    """Lets a writer tell so many lines and a while more, kills it; the last durable mark and the removals it told."""
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(n_lines)]
    time.sleep(seconds)
    os.kill(writer.pid, signal.SIGKILL)
    lines += writer.stdout.read().splitlines(keepends=True)
    writer.wait()
    writer.stdout.close()
    told = [line.split() for line in lines if line.endswith("\n")]
    durable = [int(number) for word, number in told if word == "durable"]
    return max(durable, default=-1), {int(number) for word, number in told if word == "removed"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_writers_lose_nothing_durable(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    Index.recreate(tmp_path, WordEmbedder()).close()
    last, removed = -1, set[int]()
    for _ in range(2 if seed == 1 else 10):
        told, gone = run_and_kill(tmp_path, generator.randrange(1, 7), generator.uniform(0.0, 0.15))
        last, removed = max(last, told), removed | gone
        with Index.open(tmp_path, WordEmbedder(), "read") as index:
            assert index.check() == []
            high_water = -1 if index.high_water is None else index.high_water
            assert high_water >= last
            for step in range(max(0, high_water - 60), high_water + 2):
                found = [hit for hit in index.probe(f"unique{step}", limit=5) if hit.lexical is not None]
                exact = [hit.sentence_id for hit in found if hit.lexical_rank == 1 and hit.sentence_id == step]
                present = step <= high_water and step not in removed
                assert exact == ([step] if present else []) or (step % 10 == 4 and exact == [])
    assert last >= 0


def test_a_crash_while_it_is_made_is_mended_by_making_it_again(tmp_path: Path) -> None:
    (tmp_path / "lexical").mkdir()
    (tmp_path / "vectors-000001.lkv").write_bytes(b"LKVV")
    with pytest.raises(IndexDamaged):
        Index.open(tmp_path, WordEmbedder(), "write")
    with Index.recreate(tmp_path, WordEmbedder()) as index:
        index.add([Entry(0, 0, "A zebra crossed.")])
        index.commit(0)
    with Index.open(tmp_path, WordEmbedder(), "read") as index:
        assert [hit.sentence_id for hit in index.probe("zebra", limit=3)] == [0]
