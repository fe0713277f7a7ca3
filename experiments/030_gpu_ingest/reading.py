"""Parts that read without a store: the limit of matrix products, passes behind a window, plain Hugging Face.

Each takes a Bench and answers what goes into the result.
"""

from __future__ import annotations

import inspect
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from bench import WINDOW, Bench
from networks import matrix_parameters, plain_over
from torch import Tensor
from transformers import DynamicCache

from livingkv import Settings
from livingkv.engine import Engine
from livingkv.hot_window import HotWindow
from livingkv.settings import LookBack


def limit_part(bench: Bench) -> dict[str, Any]:
    """Dense products of square bf16 matrices; the best size counts."""
    found = {}
    for size in (4096, 8192, 12288) if bench.on_gpu else (512,):
        a, b = (torch.randn(size, size, device=bench.device).bfloat16() for _ in range(2))
        out = torch.empty_like(a)
        for _ in range(3):
            torch.mm(a, b, out=out)
        n = 30 if bench.on_gpu else 2
        took = bench.seconds(partial(multiply, a, b, out, n))
        found[str(size)] = 2 * size**3 * n / took / 1e12
    return {"tflops": found, "best_tflops": max(found.values())}


def multiply(a: Tensor, b: Tensor, out: Tensor, n: int) -> None:
    """The same product n times."""
    for _ in range(n):
        torch.mm(a, b, out=out)


def attention_flops(bench: Bench, n_keys: float) -> float:
    """Of one token that attends so many keys, all layers."""
    shape = bench.model.shape
    return 4.0 * shape.n_layers * shape.n_heads * shape.head_dim * n_keys


def prefill_part(bench: Bench) -> dict[str, Any]:
    """Behind a full window: a document with its span, and with 4,096 tokens in blocks of 512 and 4,096."""
    engine = Engine.of(bench.model, "int8")
    per_token = 2.0 * matrix_parameters(bench.model.network)
    limit = bench.result.get("limit", {}).get("best_tflops")
    n = 65536 if bench.on_gpu else 2048
    found: dict[str, Any] = {"n_tokens": n, "matrix_flops_per_token": per_token}
    looks = {
        "document": (LookBack(128, 256), None, 128 + 128 + 16),
        "window_4096_block_512": (LookBack(WINDOW), 512, WINDOW + 256),
        "window_4096_block_4096": (LookBack(WINDOW), 4096, WINDOW + 2048),
    }
    for name, (look, block, n_keys) in looks.items():
        settings = Settings(block_tokens=block, span_tokens=128 if block is None else WINDOW)
        hot = engine.hot_window(settings, 16, look)
        engine.runner.read(bench.ids(2 * WINDOW), hot)
        hot.take_sealed()
        parts = torch.split(bench.ids(n, seed=1), 8192)
        rows = []
        for _ in range(3):
            launched: list[float] = []

            def read(hot: HotWindow = hot, launched: list[float] = launched, parts: tuple[Tensor, ...] = parts) -> None:
                started, spills = time.perf_counter(), []
                for part in parts:
                    engine.runner.read(part, hot)
                    spills.append(hot.spill())
                    del spills[:-3]
                launched.append(time.perf_counter() - started)

            took = bench.seconds(read)
            flops = (per_token + attention_flops(bench, n_keys)) * n
            rows.append(
                {"seconds": took, "launched_s": launched[0], "tokens_per_s": n / took, "tflops": flops / took / 1e12}
            )
        median = statistics.median(row["tokens_per_s"] for row in rows)
        found[name] = {
            "rounds": rows,
            "tokens_per_s": median,
            "share_of_limit": limit and statistics.median(row["tflops"] for row in rows) / limit,
        }
        del hot
    return found | plain_window(bench, n)


def plain_window(bench: Bench, n: int) -> dict[str, Any]:
    """Plain Hugging Face behind the same 4,096 tokens, block after block."""
    plain = plain_over(bench.model.network, bench.device)
    found: dict[str, Any] = {}
    for block in (512, 4096):
        cache = DynamicCache()
        read_plain(plain, bench.ids(WINDOW), cache, 512)
        rows = []
        for _ in range(3):
            parts = torch.split(bench.ids(n // 2, seed=2), block)

            def read(cache: DynamicCache = cache, parts: tuple[Tensor, ...] = parts) -> None:
                for part in parts:
                    read_plain(plain, part, cache, len(part))
                    cache.crop(-len(part))

            rows.append(n // 2 / bench.seconds(read))
        found[f"hugging_face_window_4096_block_{block}"] = {"rounds": rows, "tokens_per_s": statistics.median(rows)}
    return found


@torch.inference_mode()
def read_plain(plain: Any, ids: Tensor, cache: DynamicCache, block: int) -> None:
    """Prefill without logits."""
    names = inspect.signature(plain.model.forward).parameters
    name = "cache" if "cache" in names else "past_key_values"
    for part in torch.split(ids, block):
        plain.model(part[None], use_cache=True, **{name: cache})


@contextmanager
def filled_cache(bench: Bench, n_tokens: int) -> Iterator[DynamicCache]:
    """A cache that holds so many random tokens."""
    shape, cache = bench.model.shape, DynamicCache()
    size = (1, shape.n_kv_heads, n_tokens, shape.head_dim)
    for layer in range(shape.n_layers) if n_tokens else ():
        both = (torch.randn(size, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
        cache.update(*both, layer)
    yield cache


def plain_part(bench: Bench) -> dict[str, Any]:
    """Reading everything with full attention."""
    plain, block = plain_over(bench.model.network, bench.device), 8192 if bench.on_gpu else 512
    found: dict[str, Any] = {"block": block}
    read_plain(plain, bench.ids(block), DynamicCache(), block)
    for length in bench.lengths:
        if length <= bench.plain_tokens:
            ids = bench.ids(length)
            took = bench.seconds(partial(read_plain, plain, ids, DynamicCache(), block))
            found[str(length)] = {"seconds": took}
            continue
        points = []
        for at in (0, length // 4, length // 2, 3 * length // 4, length - block):
            with torch.inference_mode(), filled_cache(bench, at) as cache:
                points.append((at, bench.seconds(partial(read_plain, plain, bench.ids(block), cache, block))))
        areas = [(b[0] - a[0]) / block * (a[1] + b[1]) / 2 for a, b in pairwise(points)]
        found[str(length)] = {"seconds": sum(areas) + points[-1][1], "blocks": points, "summed_up": True}
    return found


def syncs_part(bench: Bench) -> dict[str, Any]:
    """What one pass over a block of a document waits for, and how many kernels it launches."""
    engine = Engine.of(bench.model, "int8")
    hot = engine.hot_window(Settings(), 16, LookBack(128, 256))
    ids = bench.ids(8192) if bench.on_gpu else bench.ids(1024)
    for _ in range(2):
        engine.runner.read(ids, hot)
        hot.spill()
    found: dict[str, Any] = {}
    if bench.on_gpu:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            engine.runner.read(ids, hot)
            hot.spill()
            torch.cuda.set_sync_debug_mode("default")
        found["syncs"] = [f"{Path(each.filename).name}:{each.lineno} {each.message}"[:200] for each in caught]
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if bench.on_gpu else []
    with torch.profiler.profile(activities=activities) as profile:
        engine.runner.read(ids, hot)
        hot.spill()
        bench.settle()
    kinds = [event for event in profile.events() if "CUDA" in str(event.device_type)]
    times: dict[str, list[float]] = {}
    for event in kinds:
        times.setdefault(event.name[:90], []).append(event.device_time)
    top = sorted(times.items(), key=lambda item: -sum(item[1]))[:25]
    found |= {"n_kernels": len(kinds), "device_ms": sum(map(sum, times.values())) / 1000.0}
    found["kernels"] = [{"name": name, "n": len(each), "ms": sum(each) / 1000.0} for name, each in top]
    return found
