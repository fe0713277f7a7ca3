"""The demo as `make demo` runs it: two processes, the default model, right answers and one low confidence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ["sh", str(ROOT / "examples" / "demo.sh")]


@pytest.mark.model
@pytest.mark.slow
def test_the_demo_answers_from_what_another_process_read(tmp_path: Path) -> None:
    command = tmp_path / "livingkv"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from livingkv.cli import main; main()" "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LIVINGKV": str(command),
        "PYTHON": sys.executable,
        "DEMO_STORE": str(tmp_path / "store"),
    }
    done = subprocess.run(DEMO, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 as they should be" in done.stdout
    assert done.stdout.count("LOW CONFIDENCE") == 1
    reused = [int(count) for count in re.findall(r"^tokens +(\d+) reused", done.stdout, re.MULTILINE)]
    assert all(reused[:5]) and reused[5:] == [0]  # nothing answers the last question; the others used stored KV


def test_the_demo_removes_nothing_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Keep me.")
    environment = {**os.environ, "DEMO_STORE": str(tmp_path / "mine")}
    done = subprocess.run(DEMO, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "mine" in done.stderr
    assert (tmp_path / "mine" / "letter.txt").exists()
