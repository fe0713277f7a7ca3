"""kill -9, then a new process: the next 64 greedy tokens and their logits are those of the process that never
stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("continue_session.py")
ROOT = SCRIPT.parents[2]


def run_and_kill(store: Path, model: str, task: str, codec: str = "int8") -> dict[str, Any]:
    """What the process told before it was killed with SIGKILL."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(store), model, task, codec],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert line, "the process said nothing"
    told: dict[str, Any] = json.loads(line)
    return told


@pytest.mark.model
def test_the_default_model_goes_on_bit_for_bit_after_kill(tmp_path: Path) -> None:
    never_stopped = run_and_kill(tmp_path / "store", "", "ingest")
    assert never_stopped["n_tokens"] > 600
    assert run_and_kill(tmp_path / "store", "", "restore") == never_stopped


@pytest.mark.slow
def test_a_tiny_model_goes_on_bit_for_bit_after_kill(tmp_path: Path, tiny_folder: Path) -> None:
    never_stopped = run_and_kill(tmp_path / "store", str(tiny_folder), "ingest")
    assert never_stopped["n_tokens"] > 600
    assert run_and_kill(tmp_path / "store", str(tiny_folder), "restore") == never_stopped
