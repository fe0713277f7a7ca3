"""Exact search over 8-bit codes in memory, in parts that are searched side by side.

Knows codes, rows and faiss. Parts keep the cost of growing constant (no large array is ever copied) and give every core
something to do: faiss itself searches for one question on one core.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from livingkv.index.mixing import Floats

_FAISS: Any = faiss  # its stubs do not know the Python additions
_PART_ROWS = 1 << 16
_MOST_THREADS = 8
Codes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


class FlatParts:
    """Rows of codes [dimension], numbered in the order in which they came. Not thread-safe."""

    def __init__(self, dimension: int, part_rows: int = _PART_ROWS) -> None:
        self._dimension = dimension
        self._part_rows = part_rows
        self._parts: list[Any] = []

    def __len__(self) -> int:
        return sum(part.ntotal for part in self._parts)

    def add(self, codes: Codes) -> None:
        """Append rows [n, dimension]; a code is a component plus 128."""
        done = 0
        while done < len(codes):
            if not self._parts or self._parts[-1].ntotal == self._part_rows:
                kind = faiss.ScalarQuantizer.QT_8bit_direct_signed
                self._parts.append(_FAISS.IndexScalarQuantizer(self._dimension, kind, faiss.METRIC_INNER_PRODUCT))
            room = self._part_rows - self._parts[-1].ntotal
            self._parts[-1].add_sa_codes(np.ascontiguousarray(codes[done : done + room]))
            done += room

    def codes(self) -> Codes:
        """All rows, copied."""
        parts = [_FAISS.vector_to_array(part.codes).reshape(-1, self._dimension) for part in self._parts]
        return np.concatenate([np.zeros((0, self._dimension), np.uint8), *parts])

    def search(self, query: Floats, limit: int, allowed: npt.NDArray[np.bool_] | None) -> tuple[Floats, Ints]:
        """Scores and rows of the best `limit` by dot product with a query [dimension] of whole numbers, best first.

        Only rows that `allowed` [n] marks; None allows all.
        """
        starts = np.cumsum([0, *(part.ntotal for part in self._parts)])[:-1]
        n_threads = min(len(self._parts), _n_cores(), _MOST_THREADS)

        def one(index: int) -> tuple[Floats, Ints]:
            lo = int(starts[index])
            part = self._parts[index]
            marks = None if allowed is None else allowed[lo : lo + part.ntotal]
            scores, rows = _search_part(part, query, limit, marks)
            return scores, rows + lo

        if n_threads <= 1:
            found = [one(index) for index in range(len(self._parts))]
        else:
            with ThreadPoolExecutor(n_threads) as pool:
                found = list(pool.map(one, range(len(self._parts))))
        return best_rows(found, limit)


def _search_part(part: Any, query: Floats, limit: int, marks: npt.NDArray[np.bool_] | None) -> tuple[Floats, Ints]:
    parameters = None
    if marks is not None:
        if not marks.any():
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        bits = np.packbits(marks, bitorder="little")
        selector = _FAISS.IDSelectorBitmap(bits)
        parameters = _FAISS.SearchParameters(sel=selector)
    with _one_openmp_thread():
        scores, rows = part.search(query[None], min(limit, part.ntotal), params=parameters)
    there = rows[0] >= 0
    return scores[0][there], rows[0][there]


@contextmanager
def _one_openmp_thread() -> Iterator[None]:
    """Within the block faiss runs on the calling thread alone. It gives one question to one thread in any case, and the
    others of its team wait for that one, spinning: on a busy machine they took longer than the search."""
    before = _FAISS.omp_get_max_threads()
    _FAISS.omp_set_num_threads(1)
    try:
        yield
    finally:
        _FAISS.omp_set_num_threads(before)


def best_rows(found: Sequence[tuple[Floats, Ints]], limit: int) -> tuple[Floats, Ints]:
    """The best `limit` scores of all parts with their rows, ties by row."""
    scores = np.concatenate([np.zeros(0, np.float32), *(one[0] for one in found)])
    rows = np.concatenate([np.zeros(0, np.int64), *(one[1] for one in found)])
    order = np.lexsort((rows, -scores))[:limit]
    return scores[order], rows[order]


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
