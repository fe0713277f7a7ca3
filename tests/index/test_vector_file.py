"""The vector file: what was appended is read back, what is past the committed size is not, damage is named."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from livingkv.errors import IndexDamaged, IndexFault, StoreFull
from livingkv.index import vector_file
from livingkv.index.vector_file import Batch

DIMENSION = 8


def batch(first: int, n: int) -> Batch:
    ids = np.arange(first, first + n, dtype=np.int64)
    codes = np.random.default_rng(first).integers(0, 256, (n, DIMENSION)).astype(np.uint8)
    return Batch(ids, ids % 3, codes)


def all_ids(path: Path, size: int) -> list[int]:
    batches = vector_file.read(path, "words", DIMENSION, 0, size)
    return [int(one) for each in batches for one in each.sentence_ids]


def test_batches_come_back(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    size = vector_file.create(path, "words", DIMENSION, batch(0, 3))
    later = vector_file.append(path, size, batch(3, 2))
    assert all_ids(path, later) == [0, 1, 2, 3, 4]
    (only,) = vector_file.read(path, "words", DIMENSION, size, later)
    np.testing.assert_array_equal(only.codes, batch(3, 2).codes)
    np.testing.assert_array_equal(only.session_ids, [0, 1])


def test_what_was_not_committed_is_cut_by_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    size = vector_file.create(path, "words", DIMENSION)
    vector_file.append(path, size, batch(0, 50))
    assert all_ids(path, size) == []
    again = vector_file.append(path, size, batch(7, 1))
    assert all_ids(path, again) == [7]
    assert path.stat().st_size == again


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    size = vector_file.append(path, vector_file.create(path, "words", DIMENSION, batch(0, 2)), batch(2, 1))
    whole = path.read_bytes()
    reserved_lo, reserved_hi = 20, 24
    for at in range(size):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        with pytest.raises(IndexDamaged, match="rebuild"):
            all_ids(path, size)
    assert reserved_lo < reserved_hi < size


def test_a_short_or_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    size = vector_file.create(path, "words", DIMENSION, batch(0, 2))
    for kind, dimension in (("others", DIMENSION), ("words", DIMENSION + 1)):
        with pytest.raises(IndexDamaged, match="another kind or damaged"):
            list(vector_file.read(path, kind, dimension, 0, size))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IndexDamaged, match="ends early"):
        all_ids(path, size)
    path.unlink()
    with pytest.raises(IndexDamaged, match="is missing"):
        all_ids(path, size)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StoreFull), (errno.EDQUOT, StoreFull), (errno.EIO, IndexFault)]
)
def test_a_failed_write_leaves_the_committed_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    path = tmp_path / "vectors"
    size = vector_file.create(path, "words", DIMENSION, batch(0, 2))
    real, calls = os.pwrite, []

    def short_then_fail(descriptor: int, content: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) > 1:
            raise OSError(number, os.strerror(number))
        return real(descriptor, bytes(content)[:5], at)

    monkeypatch.setattr(os, "pwrite", short_then_fail)
    with pytest.raises(kind):
        vector_file.append(path, size, batch(2, 2))
    monkeypatch.undo()
    assert all_ids(path, size) == [0, 1]
    assert all_ids(path, vector_file.append(path, size, batch(5, 1))) == [0, 1, 5]
