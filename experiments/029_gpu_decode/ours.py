"""livingkv's decoding of sessions of a given length: the window, the sinks and the positions that such a session has.

What is stored before the window is not there: a session that goes on attends its sinks and its window, restored from
pages. Those are of random keys and values, encoded once and decoded at every place.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from shape import SINKS, Scale
from theirs import peak_bytes, reset_peak, wait
from torch import Tensor

from livingkv.batched_decode import DecodeStep
from livingkv.codec import KV
from livingkv.engine import Engine
from livingkv.hot_window import HotWindow, window_start
from livingkv.sampling import Sampler, Sampling
from livingkv.settings import PAGE_TOKENS, Settings

WARM_UP = 8


def session(engine: Engine, scale: Scale, n_tokens: int) -> HotWindow:
    """The hot window of a session of `n_tokens`, restored as from its store."""
    settings = Settings(window_tokens=scale.window, block_tokens=max(64, scale.window // 8))
    hot = engine.hot_window(settings, SINKS)
    shape, device = engine.shape, engine.model.device
    size = (2, shape.n_layers, shape.n_kv_heads, PAGE_TOKENS, shape.head_dim)
    keys, values = torch.randn(size, dtype=shape.dtype, device=device)
    first = window_start(n_tokens, hot.look) // PAGE_TOKENS
    (page,) = engine.codec.encode(KV(keys, values), first * PAGE_TOKENS)
    (zero,) = engine.codec.encode(KV(keys, values), 0)
    pages = [page] * (n_tokens // PAGE_TOKENS - first)
    hot.restore(pages, first, zero, b"")
    return hot


@torch.inference_mode()
def decode(engine: Engine, sessions: Sequence[HotWindow], n_steps: int, *, records: bool) -> dict[str, Any]:
    """Tokens a second of all sessions together: passes, greedy choice with its probability, sealing of pages."""
    runner, device = engine.runner, engine.model.device
    runner.records = records
    samplers = [Sampler(Sampling()) for _ in sessions]
    tokens = [0] * len(sessions)
    reset_peak(device)
    times = []
    for _ in range(WARM_UP + n_steps):
        wait(device)
        started = perf_counter()
        steps = [DecodeStep(token, hot) for token, hot in zip(tokens, sessions, strict=True)]
        rows = [_logits(row) for row in runner.logits_of(steps)]
        tokens = [sampler.pick(row[0, -1]) for sampler, row in zip(samplers, rows, strict=True)]
        for hot in sessions:
            hot.take_sealed()
        times.append(perf_counter() - started)
    taken = sum(times[WARM_UP:])
    decoder = runner._shared.decoder if records else None
    recording = decoder.recording(len(sessions)) if decoder is not None else None
    return {
        "n_rows": len(sessions),
        "n_steps": n_steps,
        "attended": sessions[0].n_attended,
        "tokens_per_s": len(sessions) * n_steps / taken,
        "median_ms": 1000 * sorted(times[WARM_UP:])[n_steps // 2],
        "way": None if recording is None else recording.way,
        "replay_ms": None if recording is None else 1000 * recording.seconds,
        "peak_bytes": peak_bytes(device),
    }


def _logits(outcome: Tensor | Exception) -> Tensor:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
