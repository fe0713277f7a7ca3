"""The dense channel against plain numpy: the same neighbours, nearly the same cosines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from livingkv.index.dense import DenseIndex, vector_codes


def unit_vectors(n: int, dimension: int, seed: int = 0) -> npt.NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((n, dimension)).astype(np.float32)
    unit: npt.NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def filled(folder: Path, vectors: npt.NDArray[np.float32]) -> DenseIndex:
    dense = DenseIndex(folder, "words", vectors.shape[1])
    dense.create_file()
    half = len(vectors) // 2
    for lo, hi in ((0, half), (half, len(vectors))):
        dense.append(list(range(lo, hi)), [one % 5 for one in range(lo, hi)], vector_codes(vectors[lo:hi]))
    return dense


def test_a_device_finds_the_same(tmp_path: Path) -> None:
    vectors = unit_vectors(300, 32)
    dense = filled(tmp_path, vectors)
    other = DenseIndex(tmp_path, "words", 32, "cpu")
    other.load(dense.file_name, dense.size_bytes)
    for sessions in (None, frozenset({1, 3}), frozenset({99})):
        found = dense.search(vectors[5], limit=20, session_ids=sessions)
        assert other.search(vectors[5], limit=20, session_ids=sessions) == found
    other.remove([5], [])
    assert other.search(vectors[5], limit=1, session_ids=None)[0].sentence_id != 5


@pytest.mark.parametrize("dimension", [16, 30, 384, 896])
def test_cosines_are_those_of_numpy(tmp_path: Path, dimension: int) -> None:
    vectors = unit_vectors(400, dimension)
    dense = filled(tmp_path, vectors)
    query = vectors[7] + 0.4 * unit_vectors(1, dimension, 9)[0]
    query /= np.linalg.norm(query)
    found = dense.search(query, limit=10, session_ids=None)
    exact = vectors @ query
    assert found[0].sentence_id == 7
    assert {one.sentence_id for one in found[:3]} <= set(np.argsort(-exact)[:6].tolist())
    assert max(abs(one.score - exact[one.sentence_id]) for one in found) < 0.02


def test_vectors_with_one_large_component_survive_the_codes(tmp_path: Path) -> None:
    vectors = unit_vectors(100, 384)
    vectors[:, 5] += 3
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = filled(tmp_path, vectors).search(vectors[3], limit=1, session_ids=None)
    assert found[0].sentence_id == 3
    assert abs(found[0].score - 1) < 0.02


def test_only_the_asked_sessions_answer(tmp_path: Path) -> None:
    vectors = unit_vectors(100, 32)
    dense = filled(tmp_path, vectors)
    found = dense.search(vectors[7], limit=100, session_ids=frozenset({1, 3}))
    assert {one.session_id for one in found} == {1, 3}
    assert len(found) == 40
    assert dense.search(vectors[7], limit=5, session_ids=frozenset({99})) == []
    assert dense.search(vectors[7], limit=5, session_ids=frozenset()) == []


def test_nothing_matches_a_text_without_content(tmp_path: Path) -> None:
    dense = filled(tmp_path, unit_vectors(10, 32))
    assert dense.search(np.zeros(32, np.float32), limit=5, session_ids=None) == []


def test_reading_again_gives_the_same_and_removal_is_for_good(tmp_path: Path) -> None:
    vectors = unit_vectors(60, 32)
    dense = filled(tmp_path, vectors)
    before = dense.search(vectors[4], limit=60, session_ids=None)
    again = DenseIndex(tmp_path, "words", 32)
    again.load(dense.file_name, dense.size_bytes)
    assert again.search(vectors[4], limit=60, session_ids=None) == before
    again.remove([4, 5], [0])
    assert len(again) == 60 - 2 - 12 + 1  # sentence 5 is of session 0
    assert again.file_name != dense.file_name
    again.remove_other_files()
    assert [path.name for path in tmp_path.iterdir()] == [again.file_name]
    third = DenseIndex(tmp_path, "words", 32)
    third.load(again.file_name, again.size_bytes)
    left = {one.sentence_id for one in third.search(vectors[4], limit=60, session_ids=None)}
    assert left == {one for one in range(60) if one % 5 and one != 4}
