"""Shards: every item belongs to exactly one, and lines that several processes append stay whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments.shards import append_line, lines_of, part_of, run_shards


def test_every_item_belongs_to_one_shard() -> None:
    parts = [part_of(range(10), f"{index}/3") for index in range(3)]
    assert sorted(item for part in parts for item in part) == list(range(10))
    assert part_of([1, 2], "") == [1, 2]


@pytest.mark.parametrize("shard", ["3/3", "-1/3", "one/3", "1"])
def test_a_shard_that_is_none_is_refused(shard: str) -> None:
    with pytest.raises(ValueError):
        part_of([1], shard)


def test_lines_appended_at_once_stay_whole(tmp_path: Path) -> None:
    file = tmp_path / "raw.jsonl"
    assert lines_of(file) == []
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: append_line(file, {"n": n, "text": "é" * 5000}), range(40)))
    assert sorted(row["n"] for row in lines_of(file)) == list(range(40))


def test_a_failing_shard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.exit(sys.argv[-1] == '1/2')")
    with pytest.raises(RuntimeError, match=r"shards \[1\] of 2"):
        run_shards(script, [], 2)
