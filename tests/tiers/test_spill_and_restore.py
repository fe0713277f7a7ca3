"""64 loops at once that spill KV to the store and restore it through a RAM tier that is too small: no wrong bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiers.spill_cases import SpillLoops
from tests.tiers.test_pages_under_load import N_THREADS, run_threads

pytestmark = pytest.mark.slow  # hundreds of commits, each synced


def test_64_spill_and_restore_loops(folder: Path) -> None:
    loops = SpillLoops(folder / "s", torch.device("cpu"))
    loops.run(N_THREADS, 4, run_threads)
    assert loops.n_restored > 4 * N_THREADS and loops.n_wrong == 0
    assert loops.pages.counts().ram.n_evicted > N_THREADS
    loops.pages._reading.close()
    loops.pages.check()
    loops.close()
