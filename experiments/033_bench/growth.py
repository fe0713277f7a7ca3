"""How cost grows with the length of a session: ingest, restore, probe, disk and memory, from 8k tokens on.

One store grows from length to length. On a GPU the model reads all of it; on a CPU up to 64k, and what is more is
copied (growing_store.py) and marked so: then ingest has no time. Beside it plain Hugging Face: reading everything,
summed up from timed blocks as far as they take seconds, and a full cache's bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from figure import Plan, Row, run_figure
from flat_memory import peak

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
    positions = [0, *(length for length in lengths if length <= n_timed)]
    blocks = plain.block_seconds([0, *positions])[1:]
    bytes_per_token, ingest_s, sentences = plain.bytes_per_token, 0.0, shuffled_filler(0)
    del plain  # its weights are no part of a peak
    for length in lengths:
        started = time.perf_counter()
        with GrowingStore(store, model, sentences) as growing:
            ingest_s += growing.grow(length, read=n_read)
            n_tokens = growing.n_tokens
        forget_peak(plan)
        ours = summary([first_token_seconds(store, model, "resume", QUESTION) for _ in range(plan.either(3, 5))])
        known = positions[: 1 + sum(position <= length for position in positions[1:])]
        yield Row(
            "growth", f"{length:,} tokens", "s", ours, copied=length > n_read,
            facts={
                "n_tokens": n_tokens,
                "ingest s": ingest_s if length <= n_read else None,
                "probe ms": summary(probes(store, model)),
                "disk bytes": folder_bytes(store),
                "peak bytes": torch.cuda.max_memory_allocated() if on_gpu else peak(plan, "ours", str(store)),
                "baseline": {
                    "read s": prefill_seconds(length, known, blocks) if known[-1] == length else None,
                    "cache bytes": bytes_per_token * n_tokens,
                    "name": CACHE_NAMES["dynamic"],
                },
                "made in s": time.perf_counter() - started,
            },
        )  # fmt: skip


def forget_peak(plan: Plan) -> None:
    """Peaks of device memory from now on."""
    if plan.device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def probes(store: Path, model: LoadedModel) -> list[float]:
    """Milliseconds of probing within questions that are asked one after the other; the first opens the index."""
    with Memory.open(store, model=model, read_only=True) as memory:
        asked = [memory.ask(PROBED.format(word), mode="kv", max_tokens=1) for word in WORDS]
    return [answer.timings_ms.probe for answer in asked[1:]]


if __name__ == "__main__":
    run_figure(measure)
