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

from livingkv.batched_decode import DecodeStep, Outcome
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
    """Tokens a second of all sessions together: passes, greedy choice with its probability, sealing of pages.

    replay_ms: what the device takes for a step; host_share: the part of the median step in which it has nothing to do.
    """
    runner, device = engine.runner, engine.model.device
    runner.records = records
    samplers = [Sampler(Sampling()) for _ in sessions]
    tokens = [0] * len(sessions)
    reset_peak(device)
    times = []
    for _ in range(WARM_UP + n_steps):
        started = perf_counter()
        steps = [DecodeStep(*each) for each in zip(tokens, sessions, samplers, strict=True)]
        tokens = [_picked(*each) for each in zip(samplers, runner.logits_of(steps), strict=True)]
        for hot in sessions:
            hot.take_sealed()
        times.append(perf_counter() - started)
    wait(device)
    taken = sum(times[WARM_UP:])
    decoder = runner._shared.decoder if records else None
    recording = decoder.recording(len(sessions)) if decoder is not None else None
    median_ms = 1000 * sorted(times[WARM_UP:])[n_steps // 2]
    # the rows of the last step once more, at the length that they have
    replay_ms = 1000 * decoder._recorder.seconds(recording.replay) if decoder is not None and recording else None
    return {
        "n_rows": len(sessions),
        "n_steps": n_steps,
        "attended": sessions[0].n_attended,
        "tokens_per_s": len(sessions) * n_steps / taken,
        "median_ms": median_ms,
        "way": None if recording is None else recording.way,
        "replay_ms": replay_ms,
        "host_share": None if replay_ms is None else 1 - replay_ms / median_ms,
        "peak_bytes": peak_bytes(device),
    }


def _picked(sampler: Sampler, outcome: Outcome) -> int:
    """Every way to a token waits for the device."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome if isinstance(outcome, int) else sampler.pick(outcome[0, -1])
