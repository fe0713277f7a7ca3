"""KV that leaves the GPU and comes back: in a process of its own, and under load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
