"""How cost grows with the length of a session: ingest, restore, probe, disk and memory, from 8k tokens on.

One store grows from length to length. On a GPU the model reads all of it; on a CPU up to 64k, and what is more is
copied (growing_store.py) and marked so: then ingest has no time. Beside it plain Hugging Face: reading everything,
summed up from timed blocks as far as they take seconds, and a full cache's bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figure import Plan, Row, run_figure

from experiments.growing_store import GrowingStore, folder_bytes
from experiments.haystack import shuffled_filler
from experiments.plain_hugging_face import CACHE_NAMES, PlainHuggingFace, prefill_seconds
from experiments.side_by_side import summary
from experiments.timed_asks import first_token_seconds
from livingkv import Memory
from livingkv.models import LoadedModel, load_model

LENGTHS = tuple(8192 << i for i in range(8))
QUESTION, PROBED = "Summarise the last point in one word.", "Which word describes the returned value of {}?"
WORDS = ("a list", "the parser", "this class", "an array", "the function", "a module", "the stream", "its name")


def measure(plan: Plan) -> Iterator[Row]:
    """One row for each length."""
    model, plain = load_model(plan.model, device=plan.device), PlainHuggingFace(plan.folder, plan.device)
    on_gpu, store = plan.device != "cpu", plan.scratch / "store"
    lengths = plan.chosen(LENGTHS if on_gpu or not plan.quick else LENGTHS[:5])
    n_read = lengths[-1] if on_gpu else plan.tokens(plan.either(8192, 65_536))
    n_timed = plan.tokens(plan.either(32_768, 524_288) if on_gpu else plan.either(16_384, 32_768))
    positions, blocks, ingest_s = [0], plain.block_seconds([0, 0])[1:], 0.0
    sentences = shuffled_filler(0)
    for length in lengths:
        started = time.perf_counter()
        with GrowingStore(store, model, sentences) as growing:
            ingest_s += growing.read(min(length, n_read))
            growing.copy(length)
            n_tokens = growing.n_tokens
        if length <= n_timed:
            positions.append(length)
            blocks += plain.block_seconds([length])
        yield Row(
            "growth", f"{length:,} tokens", "s", summary(restored(plan, store, model)), copied=length > n_read,
            facts={
                "n_tokens": n_tokens,
                "ingest s": ingest_s if length <= n_read else None,
                "probe ms": summary(probes(store, model)),
                "disk bytes": folder_bytes(store),
                "peak bytes": peak(plan, store),
                "baseline": {
                    "read s": prefill_seconds(length, positions, blocks) if length <= n_timed else None,
                    "cache bytes": plain.bytes_per_token * n_tokens,
                    "name": CACHE_NAMES["dynamic"],
                },
                "made in s": time.perf_counter() - started,
            },
        )  # fmt: skip


def restored(plan: Plan, store: Path, model: LoadedModel) -> list[float]:
    """Seconds to the first token."""
    return [first_token_seconds(store, model, "resume", QUESTION) for _ in range(plan.either(3, 5))]


def probes(store: Path, model: LoadedModel) -> list[float]:
    """Milliseconds of probing within questions that are asked one after the other; the first opens the index."""
    with Memory.open(store, model=model, read_only=True) as memory:
        asked = [memory.ask(PROBED.format(word), mode="kv", max_tokens=1) for word in WORDS]
    return [answer.timings_ms.probe for answer in asked[1:]]


def peak(plan: Plan, store: Path) -> int:
    """Of a process of its own that asks the store."""
    script = Path(__file__).with_name("flat_memory.py")
    command = [sys.executable, str(script), "--one", "ours", str(store), plan.device, str(plan.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return int(answer["peak_bytes"])


if __name__ == "__main__":
    run_figure(measure)
