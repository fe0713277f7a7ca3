"""Ingest with a full window, coded and committed, against plain Hugging Face behind the same window (see 004_speed).

Documents are read with a short span by default, and that is faster still; its speed is the second row.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import torch
from figure import Plan, Row, run_figure, speed_row

from experiments.growing_store import prose
from experiments.haystack import shuffled_filler
from experiments.plain_hugging_face import CACHE_NAMES, PlainHuggingFace
from experiments.side_by_side import in_turn
from livingkv import Memory, Settings
from livingkv.models import load_model

WINDOW = 4096
CONVERSATION = Settings(window_tokens=WINDOW, span_tokens=WINDOW)


def measure(plan: Plan) -> Iterator[Row]:
    """New text each round, the same for all sides."""
    model, plain = load_model(plan.model, device=plan.device), PlainHuggingFace(plan.folder, plan.device)
    n_new = plan.either(1024, 2048) if plan.device == "cpu" else 32_768

    def encode(text: str) -> list[int]:
        return list(model.tokenizer(text, add_special_tokens=False)["input_ids"])

    sentences = shuffled_filler(0)
    texts = [prose(encode, n_new, sentences) for _ in range(plan.either(7, 9))]
    turns = {"window": iter(texts), "span": iter(texts), "plain": iter(texts)}
    names, warm = count(), prose(encode, WINDOW + 1024, sentences).encode()
    with (
        Memory.open(plan.scratch / "window", model=model, settings=CONVERSATION) as window,
        Memory.open(plan.scratch / "span", model=model) as span,
    ):
        for memory in (window, span):
            memory.ingest("warm", text=warm)

        def ours(memory: Memory, side: str) -> float:
            done = memory.ingest(f"{side} {next(names)}", text=next(turns[side]).encode())
            return done.seconds / done.n_tokens

        def theirs() -> float:
            ids = torch.tensor(encode(next(turns["plain"])))
            return plain.seconds_behind(ids, plain.filled(WINDOW)) / len(ids)

        found = in_turn(
            len(texts),
            {"window": lambda: ours(window, "window"), "span": lambda: ours(span, "span"), "plain": theirs},
        )
    baselines = {f"{CACHE_NAMES['dynamic']} behind {WINDOW:,} tokens": found["plain"]}
    yield speed_row("windowed prefill", f"window of {WINDOW:,}", found["window"], baselines)
    yield speed_row("windowed prefill", "documents, span of 128", found["span"], baselines)


if __name__ == "__main__":
    run_figure(measure)
