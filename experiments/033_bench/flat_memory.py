"""Peak memory of a process that asks a store of 512k tokens, against 32k; beside it a process with a full cache.

Resident size on a CPU (VmHWM, memory-mapped weights that were read count), allocated device memory on a GPU. Every
number is from a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from figure import Plan, Row, run_figure

from experiments.growing_store import GrowingStore
from experiments.haystack import shuffled_filler
from experiments.plain_hugging_face import CACHE_NAMES, PlainHuggingFace
from experiments.provenance import peak_memory_bytes
from experiments.side_by_side import ratios, summary
from livingkv import Memory
from livingkv.models import load_model

SHORT, LONG = 32_768, 524_288
WORDS = ("a list", "the parser", "this class", "an array")


def measure(plan: Plan) -> Iterator[Row]:
    """Two stores, asked by new processes in turn."""
    model, (short, long) = load_model(plan.model, device=plan.device), map(plan.tokens, (SHORT, LONG))
    sentences = shuffled_filler(0)
    for length in (short, long):
        with GrowingStore(plan.scratch / str(length), model, sentences) as growing:
            growing.grow(length, read=4096 if plan.device == "cpu" else short)
    del model
    if plan.device != "cpu":
        torch.cuda.empty_cache()
    peaks: dict[int, list[float]] = {short: [], long: []}
    for _ in range(plan.either(1, 3)):
        for length, found in peaks.items():
            found.append(peak(plan, "ours", str(plan.scratch / str(length))))
    full_lengths = tuple(map(plan.tokens, (8192, 32_768) if plan.device == "cpu" else (SHORT, LONG)))
    full = {length: peak(plan, "full", str(length)) for length in full_lengths}
    row = Row(
        "flat memory", "512k stored / 32k stored", "GB", summary([value / 1e9 for value in peaks[long]]), copied=True,
        facts={
            "at 32k, GB": summary([value / 1e9 for value in peaks[short]]),
            "full cache, GB": {f"{length:,} tokens": value / 1e9 for length, value in full.items()},
        },
    )  # fmt: skip
    row.ratios["livingkv at 32k"] = ratios(peaks[long], peaks[short])
    row.ratios[f"{CACHE_NAMES['dynamic']}, {full_lengths[1]:,} / {full_lengths[0]:,}"] = summary(
        [full[full_lengths[1]] / full[full_lengths[0]]]
    )
    yield row


def peak(plan: Plan, side: str, what: str) -> float:
    """The peak of a process of its own, in bytes."""
    command = [sys.executable, __file__, "--one", side, what, plan.device, str(plan.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{side}, {what}: {done.stderr.strip().splitlines()[-1]}")
    return float(json.loads(done.stdout.splitlines()[-1])["peak_bytes"])


def one(side: str, what: str, device: str, folder: str) -> None:
    """Ask a store four questions, or decode four tokens behind a full cache; print the peak."""
    if side == "ours":
        model = load_model(folder, device=device)
        with Memory.open(Path(what), model=model, read_only=True) as memory:
            for word in WORDS:
                memory.ask(f"What is said about {word}?", mode="kv", max_tokens=16)
            memory.ask("Summarise the last point.", mode="resume", session="default", max_tokens=16)
    else:
        plain = PlainHuggingFace(Path(folder), device)
        plain.step_seconds(plain.filled(int(what)), 4)
    value = torch.cuda.max_memory_allocated() if device != "cpu" else peak_memory_bytes()
    print(json.dumps({"peak_bytes": value}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        run_figure(measure)
