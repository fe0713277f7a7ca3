"""Parts with a store: ingest, restore and recall to the first token, the same from the start of a process, 4 bits.

Each takes a Bench and answers what goes into the result.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bench import GIB, QUESTION, WINDOW, Bench

from experiments.page_cache import drop_from_cache
from livingkv import Memory
from livingkv.settings import LookBack

HERE = Path(__file__).resolve().parent


def ingest_part(bench: Bench) -> dict[str, Any]:
    """Memory.ingest of each length into a store of its own."""
    found: dict[str, Any] = {}
    for length in bench.lengths:
        text, told = bench.text(length), list[tuple[float, int]]()
        bench.forget_peak()
        with Memory.open(bench.folder / str(length), model=bench.model, settings=bench.settings()) as memory:
            memory.ingest("first", session="other", text=bench.text(600))  # codec's self-test, index, kernels
            started = time.perf_counter()

            def tell(done: int, total: int, told: list[tuple[float, int]] = told, started: float = started) -> None:
                told.append((time.perf_counter() - started, done))

            done = memory.ingest("text", text=text, progress=tell)
            size = sum(path.stat().st_size for path in (bench.folder / str(length)).rglob("*") if path.is_file())
        durable = told[-1][0]
        found[str(length)] = {
            "n_tokens": done.n_tokens,
            "n_sentences": done.n_sentences,
            "seconds": done.seconds,
            "durable_seconds": durable,
            "tokens_per_s": done.n_tokens / durable,
            "index_seconds": done.seconds - durable,
            "peak_bytes": bench.peak(),
            "store_bytes": size,
            "progress": [(round(at, 3), n) for at, n in told],
        }
    return found


def first_token(bench: Bench, store: Path, mode: Any) -> dict[str, Any]:
    """Open the store, restore or recall, read the question: until the first token."""
    bench.settle()
    settings = replace(bench.settings(), exact_limit_s=0.0)
    started = time.perf_counter()
    with Memory.open(store, model=bench.model, settings=settings, read_only=True) as memory:
        opened = time.perf_counter() - started
        answer = memory.ask(QUESTION, mode=mode, max_tokens=1, session="default")
    times = answer.timings_ms
    return {
        "seconds": opened + times.first_token / 1000.0,
        "opened_s": opened,
        "probe_ms": times.probe,
        "fetch_ms": times.fetch,
        "first_token_ms": times.first_token,
        "mode": answer.mode,
        "reused_tokens": answer.reused_tokens,
        "prefilled_tokens": answer.prefilled_tokens,
    }


def restore_part(bench: Bench) -> dict[str, Any]:
    """Each length's store, warm and with the page cache dropped; ratios to reading everything, ours and plain."""
    found: dict[str, Any] = {}
    for length in bench.lengths:
        store = bench.folder / str(length)
        if not store.is_dir():
            continue
        rows: dict[str, Any] = {}
        for mode in ("resume", "kv"):
            first_token(bench, store, mode)
            warm = [first_token(bench, store, mode) for _ in range(bench.repeats)]
            cold = []
            for _ in range(bench.repeats):
                drop_from_cache(store)
                cold.append(first_token(bench, store, mode))
            rows[mode] = {"warm": warm, "cold": cold}
        rows["ratios"] = ratios(bench, length, rows)
        found[str(length)] = rows
    return found


def ratios(bench: Bench, length: int, rows: dict[str, Any]) -> dict[str, Any]:
    """Reading everything again over the first token."""
    ours = bench.result.get("ingest", {}).get(str(length), {}).get("durable_seconds")
    plain = bench.result.get("plain", {}).get(str(length), {}).get("seconds")
    found = {}
    for mode in ("resume", "kv"):
        for heat in ("warm", "cold"):
            took = statistics.median(row["seconds"] for row in rows[mode][heat])
            found[f"{mode}_{heat}"] = {
                "seconds": took,
                "windowed_prefill_over_it": ours and ours / took,
                "plain_prefill_over_it": plain and plain / took,
            }
    return found


def nf4_part(bench: Bench) -> dict[str, Any]:
    """Reading 32,768 tokens and going on with a conversation, all within 7 GiB of this process's allocator."""
    store = bench.folder / "nf4"
    bench.forget_peak()
    with Memory.open(store, model=bench.model, settings=bench.settings(window_tokens=WINDOW)) as memory:
        done = memory.ingest("text", text=bench.text(bench.lengths[0]))
        read = bench.peak()
        memory.chat("What was noted? " * 700, max_tokens=2, recall="off")
        answer = memory.ask(QUESTION, mode="kv", max_tokens=8, session="default")
        block = memory._home.engine().pass_tokens(bench.settings(), LookBack(128, 256))
    return {
        "n_tokens": done.n_tokens,
        "tokens_per_s": done.n_tokens / done.seconds,
        "block_tokens": block,
        "peak_bytes_reading": read,
        "peak_bytes": bench.peak(),
        "reserved_bytes": torch.cuda.max_memory_reserved(bench.device) if bench.on_gpu else None,
        "limit_bytes": 7 * GIB,
        "mode": answer.mode,
    }


def start_part(bench: Bench) -> dict[str, Any]:
    """Processes of their own, from their start to the first token of the longest store; needs a model's folder."""
    store = bench.folder / str(bench.lengths[-1])
    assert bench.model_folder is not None, "give --model: random weights are in no folder"
    found: dict[str, Any] = {}
    for heat in ("dropped", "warm"):
        rows = []
        for _ in range(min(bench.repeats, 3)):
            if heat == "dropped":
                drop_from_cache(store)
                drop_from_cache(bench.model_folder)
            command = [sys.executable, str(HERE / "start.py"), str(store), str(bench.model_folder), "resume"]
            started = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
            laps = json.loads(done.stdout.splitlines()[-1])
            rows.append(laps | {"whole_process": time.perf_counter() - started})
        found[heat] = rows
    return found
