"""Tests. Where there is no GPU, Triton's interpreter runs its kernels: that is asked for before anything imports it."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
