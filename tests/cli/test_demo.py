"""The demo as `make demo` runs it: two processes, the default model, right answers and one low confidence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import fake_memory

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


def test_the_demo_asks_and_judges(tmp_path: Path) -> None:
    """Without the model: examples/demo.py over a memory that holds one of the answers, which makes the others wrong."""
    memory = fake_memory.Memory.open(tmp_path)
    memory.ingest("1-monday.md", text=b"The new code for the tool shed is 4471.")
    code = (
        "import runpy, sys; from tests.cli.fake_memory import fake_module; "
        "sys.modules['livingkv.memory'] = fake_module(); runpy.run_path('examples/demo.py', run_name='__main__')"
    )
    command = [sys.executable, "-c", code, "ask", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    shed = done.stdout.partition("[2/6]")[0]
    assert "The new code for the tool shed is 4471." in shed and "WRONG" not in shed
    assert done.stdout.count("WRONG: wanted") == 4 and "2 of 6 as they should be" in done.stdout


def test_the_demo_removes_nothing_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Keep me.")
    environment = {**os.environ, "DEMO_STORE": str(tmp_path / "mine")}
    done = subprocess.run(DEMO, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "mine" in done.stderr
    assert (tmp_path / "mine" / "letter.txt").exists()
