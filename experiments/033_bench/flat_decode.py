"""Tokens/s of decoding where 512k tokens are stored, against 32k; beside it a full cache that grows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from figure import Plan, Row, run_figure, speed_row

from experiments.growing_store import GrowingStore
from experiments.haystack import shuffled_filler
from experiments.plain_hugging_face import CACHE_NAMES, PlainHuggingFace
from experiments.side_by_side import in_turn, ratios, summary
from experiments.timed_asks import Decoding
from livingkv.models import LoadedModel, load_model
from livingkv.results import Mode

QUESTION = "Which word describes the returned value?"
SHORT, LONG = 32_768, 524_288
MODES: tuple[Mode, ...] = ("kv", "resume")


def measure(plan: Plan) -> Iterator[Row]:
    """Token by token, the two stores in turn; then the full cache at two lengths that memory allows here."""
    model = load_model(plan.model, device=plan.device)
    n_read = 4096 if plan.device == "cpu" else 65_536
    sentences = shuffled_filler(0)
    for length in map(plan.tokens, (SHORT, LONG)):
        with GrowingStore(plan.scratch / str(length), model, sentences) as growing:
            growing.grow(length, read=n_read)
    steps = plan.either(24, 64)
    found = {mode: steps_in_turn(plan, model, mode, steps) for mode in MODES}
    full = full_cache(plan, PlainHuggingFace(plan.folder, plan.device))
    for mode, (short, long) in found.items():
        row = speed_row(
            "flat decode", f"512k stored / 32k stored, mode {mode}", long, {}, copied=True,
            facts={"at 32k, tokens/s": summary([1 / value for value in short]), "full cache, tokens/s": full},
        )  # fmt: skip
        row.ratios["livingkv at 32k"] = summary([statistics.median(short) / statistics.median(long)])
        row.ratios["livingkv at 32k, step by step"] = ratios(short, long)
        lengths = list(full)
        row.ratios[f"{CACHE_NAMES['dynamic']}, {lengths[1]:,} / {lengths[0]:,}"] = summary(
            [full[lengths[1]] / full[lengths[0]]]
        )
        yield row


def steps_in_turn(plan: Plan, model: LoadedModel, mode: Mode, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of each step at both lengths."""
    with ExitStack() as closing:
        sides: dict[str, Callable[[], float]] = {}
        for length in map(plan.tokens, (SHORT, LONG)):
            store = plan.scratch / str(length)
            one = closing.enter_context(Decoding(store, model, mode, QUESTION, n_tokens=steps + 8))
            for _ in range(3):
                one.step_seconds()
            sides[str(length)] = one.step_seconds
        short, long = in_turn(steps, sides).values()
        return short, long


def full_cache(plan: Plan, plain: PlainHuggingFace) -> dict[int, float]:
    """How the speed of a full cache falls: tokens/s at a length and at 4 times that on a CPU, at 16 times on a GPU."""
    lengths = list(map(plan.tokens, (8192, 32_768) if plan.device == "cpu" else (SHORT, LONG)))
    caches = {length: plain.filled(length) for length in lengths}
    for cache in caches.values():
        plain.step_seconds(cache, 1)
    sides = {str(length): partial(one_step, plain, cache) for length, cache in caches.items()}
    found = in_turn(plan.either(5, 12), sides)
    return {length: 1 / statistics.median(found[str(length)]) for length in lengths}


def one_step(plain: PlainHuggingFace, cache: object) -> float:
    """Seconds of one token behind a full cache."""
    return plain.step_seconds(cache, 1)[0]


if __name__ == "__main__":
    run_figure(measure)
