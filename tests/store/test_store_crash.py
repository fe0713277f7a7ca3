"""SIGKILL at every failpoint, in the middle of writes and at random times: nothing is lost, nothing is wrong.

The thousand: `LIVINGKV_KILLS=1000 python -m pytest tests/store/test_store_crash.py -k many -s` (some minutes).
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from livingkv.store import Step
from tests.store.crash_operations import KINDS
from tests.store.other_process import run


def kill_many(folder: Path, n_kills: int, seed: int) -> dict[str, Any]:
    """Run the driver; what it did."""
    arguments = (folder, str(n_kills), str(seed))
    done: dict[str, Any] = json.loads(run("-m", "tests.store.crash_driver", *arguments, OPENBLAS_NUM_THREADS="1"))
    return done


@pytest.mark.slow
def test_kills(folder: Path) -> None:
    seed = int(os.environ.get("LIVINGKV_CRASH_SEED", time.time_ns() % 1_000_000))
    done = kill_many(folder, int(os.environ.get("LIVINGKV_KILLS", "20")), seed)
    assert sum(done["acknowledged"].values()) > 10, f"seed {seed}"


@pytest.mark.slow
def test_many_kills(folder: Path) -> None:
    """At every failpoint, among all operations. A thousand: LIVINGKV_KILLS=1000 (four seeds share them)."""
    seed, n_kills = int(os.environ.get("LIVINGKV_CRASH_SEED", "0")), int(os.environ.get("LIVINGKV_KILLS", "200"))
    kills: Counter[str] = Counter()
    acknowledged: Counter[str] = Counter()
    for number in range(seed, seed + 4):
        (folder / str(number)).mkdir()
        done = kill_many(folder / str(number), n_kills // 4, number)
        kills.update(done["kills"])
        acknowledged.update(done["acknowledged"])
    print(f"kills: {dict(kills)}, acknowledged: {dict(acknowledged)}")
    missed = {"WRITE", "RANDOM TIME", *(step.name for step in Step)} - kills.keys()
    assert len(missed) <= (0 if n_kills >= 1000 else 4), missed
    assert acknowledged.keys() == {"append", *KINDS}
