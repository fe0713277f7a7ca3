"""Rows that were used lately."""

from __future__ import annotations

import numpy as np

from livingkv.experts.row_cache import RowCache


def test_the_cache_keeps_what_was_used_last() -> None:
    random = np.random.default_rng(5)
    cache = RowCache(row_bytes=8, budget_bytes=8 * 16 + 7)
    order: list[int] = []
    for _ in range(300):
        ids = np.unique(random.integers(0, 40, random.integers(1, 20)))
        found, slots, missing = cache.split(ids)
        assert ids[found].tolist() == [row for row in ids.tolist() if row in order]
        assert (cache.rows(slots) == ids[found][:, None].astype(np.uint8)).all()
        new = ids[missing]
        cache.keep(new, np.repeat(new[:, None], 8, 1).astype(np.uint8))
        used = [*ids[found].tolist(), *new[-16:].tolist()]
        order = [row for row in order if row not in used] + used
        order = order[-16:]
    assert cache.n_bytes == 128
    cache.clear()
    assert cache.split(np.arange(40)).found.size == 0
