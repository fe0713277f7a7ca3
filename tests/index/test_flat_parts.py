"""Search in parts against one plain product: the same rows in the same order, whatever the parts."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import pytest

from livingkv.index.device_parts import DeviceParts
from livingkv.index.flat_parts import FlatParts


def made(kind: str, dimension: int, part_rows: int) -> FlatParts | DeviceParts:
    return FlatParts(dimension, part_rows) if kind == "faiss" else DeviceParts(dimension, "cpu", part_rows)


@pytest.mark.parametrize("kind", ["faiss", "device"])
@pytest.mark.parametrize("part_rows", [7, 100, 1000])
def test_parts_find_what_one_product_finds(part_rows: int, kind: str) -> None:
    generator = np.random.default_rng(part_rows)
    codes = generator.integers(1, 256, (500, 32), dtype=np.uint8)
    query = generator.integers(-127, 128, 32).astype(np.float32)
    parts = made(kind, 32, part_rows)
    for lo in range(0, 500, 90):
        parts.add(codes[lo : lo + 90])
    exact = (codes.astype(np.float32) - 128) @ query
    allowed = generator.random(500) < 0.3
    for marks, among in ((None, np.arange(500)), (allowed, np.flatnonzero(allowed))):
        scores, rows = parts.search(query, 20, marks)
        order = among[np.lexsort((among, -exact[among]))][:20]
        assert rows.tolist() == order.tolist()
        assert scores.tolist() == exact[order].tolist()
    assert len(parts) == 500
    assert (parts.codes() == codes).all()


@pytest.mark.parametrize("kind", ["faiss", "device"])
def test_nothing_is_found_in_nothing(kind: str) -> None:
    parts = made(kind, 8, 100)
    scores, rows = parts.search(np.ones(8, np.float32), 5, None)
    assert len(scores) == len(rows) == len(parts) == 0
    assert parts.codes().shape == (0, 8)


class CountingPart:
    """Searches as the part that it stands for, and notes how many OpenMP threads faiss would take."""

    def __init__(self, part: Any, seen: list[int]) -> None:
        self._part = part
        self._seen = seen

    @property
    def ntotal(self) -> int:
        return int(self._part.ntotal)

    def search(self, *given: Any, **named: Any) -> Any:
        self._seen.append(faiss.omp_get_max_threads())
        return self._part.search(*given, **named)


@pytest.mark.parametrize("part_rows", [100, 1000])
def test_faiss_searches_on_the_calling_thread_alone_and_the_callers_setting_stays(
    part_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        parts, seen = FlatParts(8, part_rows), list[int]()
        parts.add(np.random.default_rng(0).integers(1, 256, (300, 8), dtype=np.uint8))
        monkeypatch.setattr(parts, "_parts", [CountingPart(part, seen) for part in parts._parts])
        scores, _ = parts.search(np.ones(8, np.float32), 4, None)
        marks = np.arange(300) < 150
        parts.search(np.ones(8, np.float32), 4, marks)
        assert len(scores) == 4
        assert set(seen) == {1}
        assert len(seen) >= 2
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)
