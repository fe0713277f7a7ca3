"""`livingkv serve` as a process of its own."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

CODE = "from livingkv.cli import main; main()"


@contextmanager
def process(folder: Path, model: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """`livingkv serve` on a free port, ready."""
    argv = [sys.executable, "-c", CODE, "serve", str(folder), "--model", str(model), "--port", "0", *options]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as made:
        assert made.stderr is not None
        fcntl.fcntl(made.stderr, fcntl.F_SETPIPE_SZ, 1 << 20)  # a full pipe would hold back a service that logs
        for line in made.stderr:
            if line.startswith("livingkv: "):
                break
        else:
            raise AssertionError(f"it ended with {made.wait()}")
        url = line.rpartition(" ")[2].strip().removesuffix("/v1")
        try:
            with httpx.Client(base_url=url, timeout=60) as client:
                yield made, client
        finally:
            made.kill()
            made.stderr.close()
