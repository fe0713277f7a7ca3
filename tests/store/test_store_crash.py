"""SIGKILL at every failpoint, in the middle of writes and at random times: nothing is lost, nothing is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def kill_many(folder: Path, n_kills: int, seed: int) -> int:
    """Run the driver; the number of acknowledged operations."""
    command = [sys.executable, "-m", "tests.store.crash_driver", str(folder), str(n_kills), str(seed)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    return int(done.stdout)


def test_kills(folder: Path) -> None:
    seed = int(os.environ.get("LIVINGKV_CRASH_SEED", time.time_ns() % 1_000_000))
    assert kill_many(folder, int(os.environ.get("LIVINGKV_KILLS", "52")), seed) > 40, f"seed {seed}"


@pytest.mark.slow
def test_a_thousand_kills(folder: Path) -> None:
    for seed in range(20):
        (folder / str(seed)).mkdir()
        assert kill_many(folder / str(seed), 50, seed) > 50
