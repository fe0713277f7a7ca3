"""A process that goes on from a stored session: prints a digest of 64 greedy steps, then waits to be killed.

python tests/model/continue_session.py STORE MODEL ingest|restore CODEC
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import torch

from livingkv import Memory, Settings
from livingkv.home import Home

NOTES = Path(__file__).resolve().parents[2] / "examples" / "notes"


def continue_greedily(home: Home, n: int = 64) -> dict[str, object]:
    """Tokens of `n` greedy steps from the session's state, and a digest of the logits' bits."""
    engine, digest, ids = home.engine(), hashlib.sha256(), []
    row = home.session_for_writing("default")
    with home.hot_window(row) as hot:
        token = torch.tensor([11], device=engine.model.device)
        for _ in range(n):
            logits = engine.runner.logits(token, hot)[0, -1]
            digest.update(logits.cpu().numpy().tobytes())
            token = logits.argmax()[None]
            ids.append(int(token))
    told = {"n_tokens": row.n_tokens, "tokens": ids, "digest": digest.hexdigest()}
    return told | {"device": engine.model.device.type}


def main() -> None:
    """Ingest or restore, go on, tell, wait."""
    store, model, task, codec = sys.argv[1:]
    settings = Settings.from_dict({"window_tokens": 256, "codec": codec})
    memory = Memory.open(store, model=model or None, settings=settings)
    if task == "ingest":
        memory.ingest(NOTES / "1-monday.md")
        memory.ingest("more", text=b"The ferry leaves at noon. Nobody was late.")
    print(json.dumps(continue_greedily(memory._home)), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
