"""Tokens/s of decoding with so much stored, against caches that hold all of it, at growing lengths.

What transformers offers: DynamicCache, the same offloaded, quantized ones. kvpress prunes a full cache after reading
it; it needs an older transformers, so it is run by a Python of its own (LIVINGKV_KVPRESS_PYTHON).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from figure import Plan, Row, run_figure, speed_row

from experiments.growing_store import GrowingStore
from experiments.haystack import shuffled_filler
from experiments.plain_hugging_face import CACHE_NAMES, CacheKind, PlainHuggingFace
from experiments.side_by_side import in_turn
from experiments.timed_asks import Decoding
from livingkv.models import load_model

QUESTION = "Which word describes the returned value?"
NOT_HERE = (ImportError, RuntimeError, ValueError, TypeError, AttributeError, AssertionError)
KVPRESS = "kvpress, ExpectedAttention, half pruned"


def measure(plan: Plan) -> Iterator[Row]:
    """Ours in modes kv and resume, then every cache, a step each in turn."""
    model, plain = load_model(plan.model, device=plan.device), PlainHuggingFace(plan.folder, plan.device)
    lengths = plan.either((4096, 16_384), (4096, 16_384, 65_536))
    if plan.device != "cpu":
        lengths = plan.either((8192, 32_768), (32_768, 131_072, 524_288))
    n_read = 4096 if plan.device == "cpu" else 65_536
    sentences = shuffled_filler(0)
    for length in plan.chosen(lengths):
        with GrowingStore(plan.scratch / "store", model, sentences) as growing:
            growing.grow(length, read=n_read)
        steps = plan.either(6, 16)
        sides, missing = dict[str, Callable[[], float]](), dict[str, str]()
        for kind, name in CACHE_NAMES.items():
            step = cache_step(plain, kind, length, missing)
            if step is not None:
                sides[name] = step
        for mode in ("kv", "resume"):
            decoding = Decoding(plan.scratch / "store", model, mode, QUESTION, n_tokens=steps + 4)
            decoding.step_seconds()
            with decoding:
                found = in_turn(steps, {"ours": decoding.step_seconds, **sides})
            ours = found.pop("ours")
            pressed = kvpress_seconds(plan, length, missing) if mode == "kv" else None
            if pressed is not None:
                found[KVPRESS] = pressed
            yield speed_row(
                "decode / full cache", f"{length:,} tokens, mode {mode}", ours, found, missing=missing,
                copied=length > n_read, facts={"attended": decoding.attended},
            )  # fmt: skip


def cache_step(
    plain: PlainHuggingFace, kind: CacheKind, n_tokens: int, missing: dict[str, str]
) -> Callable[[], float] | None:
    """A step behind a full cache of this kind, tried once; None where it cannot be had here."""
    try:
        cache = plain.filled(n_tokens, kind)
        plain.step_seconds(cache, 1)
    except NOT_HERE as error:
        missing[CACHE_NAMES[kind]] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
        return None
    return lambda: plain.step_seconds(cache, 1)[0]


def kvpress_seconds(plan: Plan, n_tokens: int, missing: dict[str, str]) -> list[float] | None:
    """Steps behind a cache that kvpress pruned, in a process of another Python; only where reading takes minutes at
    most."""
    python = os.environ.get("LIVINGKV_KVPRESS_PYTHON")
    if python is None:
        missing[KVPRESS] = "kvpress 0.5.5 needs transformers < 5.3: set LIVINGKV_KVPRESS_PYTHON to a Python that has it"
        return None
    if plan.device == "cpu" and n_tokens > plan.either(4096, 16_384):
        missing[KVPRESS] = "it reads everything first, which takes too long here"
        return None
    script = Path(__file__).with_name("kvpress_side.py")
    command = [python, str(script), str(plan.folder), str(n_tokens), plan.device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        missing[KVPRESS] = done.stderr.strip().splitlines()[-1][:160]
        return None
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])["step_seconds"]
    return seconds


if __name__ == "__main__":
    run_figure(measure)
