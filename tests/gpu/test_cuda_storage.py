"""KV that leaves the GPU and comes back: in a process of its own, and under load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from livingkv.index.device_parts import DeviceParts, fits
from livingkv.index.flat_parts import FlatParts
from tests.model.test_kill_and_restore import run_and_kill
from tests.tiers.spill_cases import SpillLoops
from tests.tiers.test_pages_under_load import N_THREADS, run_threads

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("codec", ["int8", "lossless"])
def test_a_session_of_the_gpu_goes_on_bit_for_bit_in_another_process(
    tmp_path: Path, tiny_folder: Path, codec: str
) -> None:
    never_stopped = run_and_kill(tmp_path / "store", str(tiny_folder), "ingest", codec)
    assert never_stopped["device"] == "cuda" and never_stopped["n_tokens"] > 600
    assert run_and_kill(tmp_path / "store", str(tiny_folder), "restore", codec) == never_stopped


def test_64_spill_and_restore_loops(tmp_path: Path) -> None:
    loops = SpillLoops(tmp_path / "s", torch.device("cuda"))
    loops.run(N_THREADS, 4, run_threads)
    assert loops.n_restored > 4 * N_THREADS and loops.n_wrong == 0
    loops.close()


def test_vectors_on_the_gpu_are_found_as_in_ram() -> None:
    generator = np.random.default_rng(0)
    codes = generator.integers(1, 256, (40_000, 896), dtype=np.uint8)
    query = generator.integers(-127, 128, 896).astype(np.float32)
    here, there = FlatParts(896), DeviceParts(896, "cuda")
    for parts in (here, there):
        parts.add(codes)
    for allowed in (None, generator.random(len(codes)) < 0.2):
        scores, rows = here.search(query, 64, allowed)
        scores_there, rows_there = there.search(query, 64, allowed)
        assert (scores.tolist(), rows.tolist()) == (scores_there.tolist(), rows_there.tolist())
    assert fits("cuda", 1 << 20) and not fits("cuda", 1 << 50)
