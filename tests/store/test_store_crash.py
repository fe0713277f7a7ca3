"""SIGKILL at every failpoint, in the middle of writes and at random times: nothing is lost, nothing is wrong."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.store.other_process import run


def kill_many(folder: Path, n_kills: int, seed: int) -> int:
    """Run the driver; the number of acknowledged operations."""
    arguments = (folder, str(n_kills), str(seed))
    return int(run("-m", "tests.store.crash_driver", *arguments, OPENBLAS_NUM_THREADS="1"))


def test_kills(folder: Path) -> None:
    seed = int(os.environ.get("LIVINGKV_CRASH_SEED", time.time_ns() % 1_000_000))
    assert kill_many(folder, int(os.environ.get("LIVINGKV_KILLS", "52")), seed) > 40, f"seed {seed}"


@pytest.mark.slow
def test_a_thousand_kills(folder: Path) -> None:
    for seed in range(20):
        (folder / str(seed)).mkdir()
        assert kill_many(folder / str(seed), 50, seed) > 50
