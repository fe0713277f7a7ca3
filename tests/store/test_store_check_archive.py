"""Check looks at the archive: every damaged line is named, and so is a file that cannot be read."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.secret_cases import secret_store
from tests.store.store_cases import assert_whole, read_store, write_store


@pytest.fixture(name="root")
def pruned_store(folder: Path) -> Path:
    """A store with ten sentences in its archive."""
    root = folder / "store"
    secret_store(root)[0].close()
    with write_store(root) as store:
        store.prune(1, keep=1)
    with read_store(root) as store:
        assert len(store.archived()) == 10
        assert_whole(store)
    return root


def problems(root: Path) -> tuple[str, ...]:
    """What check says."""
    with read_store(root) as store:
        return store.check().problems


def test_a_line_that_is_cut_off_is_named(root: Path) -> None:
    file = root / "archive" / "sentences.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    (problem,) = problems(root)
    assert f"{file} line 10: damaged" in problem and "backup" in problem


def test_damaged_lines_beside_one_another_are_named_together(root: Path) -> None:
    file = root / "archive" / "sentences.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    for number in (2, 3, 6):
        lines[number - 1] = b"?" + lines[number - 1][1:]
    file.write_bytes(b"".join(lines))
    first, second = problems(root)
    assert "lines 2 to 3: damaged" in first and "line 6: damaged" in second


def _zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def _random(file: Path) -> None:
    file.write_bytes(random.Random(7).randbytes(file.stat().st_size))


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _no_folder(file: Path) -> None:
    file.unlink()
    file.parent.rmdir()
    file.parent.write_bytes(b"")


@pytest.mark.parametrize("harm", [_zeroed, _random, _folder, _no_folder])
def test_an_archive_that_is_none_any_more_is_named(root: Path, harm: Callable[[Path], None]) -> None:
    harm(root / "archive" / "sentences.jsonl")
    assert any("archive" in problem for problem in problems(root))
