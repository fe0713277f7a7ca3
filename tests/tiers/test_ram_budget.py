"""The RAM budget is hard: a process of its own, 10,000 random reads, its memory as the kernel counts it."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest

from tests.store.other_process import run
from tests.tiers.tier_cases import PAGE_BYTES, paged_store

BUDGET_BYTES = 64 << 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_within_the_budget_and_does_not_creep(folder: Path) -> None:
    paged_store(folder, 1000)
    sizes = map(str, (PAGE_BYTES, BUDGET_BYTES, 10_000))
    result = json.loads(run("-m", "tests.tiers.budget_reader", folder, *sizes))
    grown = result["grown_bytes"]
    assert result["n_evicted"] > 5000
    assert max(grown) <= BUDGET_BYTES * 1.02
    half, end = statistics.median(grown[45:55]), statistics.median(grown[-10:])
    assert abs(end - half) <= BUDGET_BYTES * 0.01, "what 5,000 more reads add is less than 135 bytes each"
    assert result["left_bytes"] < BUDGET_BYTES * 0.02
