"""From the start of a process to the first token of a restored session, in parts; one JSON line on standard output.

python experiments/030_gpu_ingest/start.py STORE MODEL_FOLDER MODE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()


def main(store: str, folder: str, mode: Any) -> None:
    """Import, load, open, answer with one token."""
    laps: dict[str, float] = {}
    last = STARTED

    def lap(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        laps[name], last = now - last, now

    import torch

    lap("import_torch")
    from livingkv import Memory
    from livingkv.models import load_model

    lap("import_livingkv")
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
    lap("device")
    model = load_model(folder)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    lap("load_model")
    with Memory.open(store, model=model, read_only=True) as memory:
        lap("open")
        answer = memory.ask("Which number does entry 77 hold?", mode=mode, session="default", max_tokens=1)
    times = answer.timings_ms
    laps |= {"probe": times.probe / 1000, "fetch": times.fetch / 1000}
    laps["first_token_after_open"] = times.first_token / 1000
    laps["total"] = last - STARTED + times.first_token / 1000
    print(json.dumps(laps))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(*sys.argv[1:])
