"""Python in a process of its own, started at the top of the repository so that it finds livingkv and the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """Python with these arguments, its input and output piped. A context manager."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str | Path, **environment: str) -> str:
    """What Python with these arguments prints. Fails with what it said on standard error."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{arguments[1:]}: {done.stderr}"
    return done.stdout
