"""From an unopened store to the first token, against reading everything again and against what else brings it back.

Cold prefill of a text is plain Hugging Face in blocks of 512. On a CPU it is summed up from blocks timed behind caches
of several lengths; at the shortest length of a full run, and on a GPU always, it is run as a whole. The saved cache is
what a user of transformers would write: keys and values in a safetensors file, loaded into a DynamicCache.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from figure import Plan, Row, run_figure, seconds_row
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from experiments.growing_store import GrowingStore, folder_bytes
from experiments.haystack import shuffled_filler
from experiments.plain_hugging_face import PlainHuggingFace, prefill_seconds
from experiments.plain_model import PlainModel
from experiments.side_by_side import in_turn
from experiments.systems import TextRetrieval
from experiments.timed_asks import first_token_seconds
from livingkv.home import Home
from livingkv.models import LoadedModel, load_model

RESUME, RECALL = "Summarise the last point in one word.", "Which word describes the returned value?"
COLD, SAVED = "Hugging Face, everything read again", "Hugging Face, cache saved to a file"
TEXT = "text retrieval: the same index, passages read again"


def measure(plan: Plan) -> Iterator[Row]:
    """One store that grows from length to length."""
    model, plain = load_model(plan.model, device=plan.device), PlainHuggingFace(plan.folder, plan.device)
    reading = PlainModel(load_model(plan.model, device=plan.device))
    on_gpu = plan.device != "cpu"
    lengths = plan.either((8192, 32768), (32768, 131072, 524288)) if on_gpu else (16384, 65536)
    n_read = 1 << 30 if on_gpu else plan.either(8192, 65536)
    sentences = shuffled_filler(0)
    for length in plan.chosen(lengths):
        with GrowingStore(plan.scratch / "store", model, sentences) as growing:
            growing.grow(length, read=n_read)
            n_tokens = growing.n_tokens
        sides = store_sides(plan.scratch / "store", model)
        sides[SAVED] = saved_cache(plan.scratch / "cache.safetensors", plain, n_tokens)
        sides[TEXT] = retrieval(plan.scratch / "store", model, reading)
        found = in_turn(plan.either(3, 5), sides)
        as_whole = on_gpu or (not plan.quick and length == plan.chosen(lengths)[0])
        cold = [whole_prefill(plain, n_tokens)] if as_whole else [sampled_prefill(plain, n_tokens)]
        facts: dict[str, Any] = {
            "n_tokens": n_tokens,
            "cold prefill": "as a whole" if as_whole else "sum of timed blocks",
            "store bytes": folder_bytes(plan.scratch / "store"),
            "saved cache bytes": (plan.scratch / "cache.safetensors").stat().st_size,
        }
        if as_whole and not on_gpu:
            facts["cold prefill, sum of timed blocks"] = sampled_prefill(plain, n_tokens)
        name, copied = f"{length:,} tokens", length > n_read
        baselines = {COLD: cold, SAVED: found[SAVED], TEXT: found[TEXT]}
        for side, figure in (("resume", "restore"), ("resume, cold", "restore"), ("kv", "recall")):
            condition = f"{name}, page cache dropped" if side.endswith("cold") else name
            yield seconds_row(figure, condition, found[side], baselines, copied=copied, facts=facts)
        remove(plan.scratch)


def store_sides(store: Path, model: LoadedModel) -> dict[str, Callable[[], float]]:
    """Ours: resuming the session, the same from the drive, and recall out of all of it."""
    return {
        "resume": partial(first_token_seconds, store, model, "resume", RESUME),
        "resume, cold": partial(first_token_seconds, store, model, "resume", RESUME, cold=True),
        "kv": partial(first_token_seconds, store, model, "kv", RECALL),
    }


def saved_cache(path: Path, plain: PlainHuggingFace, n_tokens: int) -> Callable[[], float]:
    """Load a cache that was saved, and read a question behind it."""
    cache = plain.filled(n_tokens)
    layers = [(layer.keys, layer.values) for layer in cache.layers]
    save_file({f"{kind}{i}": pair[j] for i, pair in enumerate(layers) for j, kind in enumerate("kv")}, path)
    question = plain.some_ids(12)

    def load() -> float:
        started = time.perf_counter()
        tensors, loaded = load_file(path, device=str(plain.device)), DynamicCache()
        for layer in range(len(layers)):
            loaded.update(tensors[f"k{layer}"], tensors[f"v{layer}"], layer)
        plain.first_token(question, loaded)
        return time.perf_counter() - started

    return load


def retrieval(store: Path, model: LoadedModel, reading: PlainModel) -> Callable[[], float]:
    """Open the store, find passages, read them and the question afresh, one token."""

    def answer() -> float:
        started = time.perf_counter()
        home = Home(store, model, None, read_only=True, create=False)
        try:
            TextRetrieval(reading, home, "default").answer(RECALL, max_tokens=1)
        finally:
            home.close()
        return time.perf_counter() - started

    return answer


def whole_prefill(plain: PlainHuggingFace, n_tokens: int) -> float:
    """Everything is read, then a question."""
    cache = plain.cache()
    started = time.perf_counter()
    plain.read(plain.some_ids(n_tokens), cache)
    plain.first_token(plain.some_ids(12), cache)
    return time.perf_counter() - started


def sampled_prefill(plain: PlainHuggingFace, n_tokens: int) -> float:
    """The same without reading everything."""
    positions = [0, n_tokens // 4, n_tokens // 2, n_tokens]
    plain.block_seconds([0])
    return prefill_seconds(n_tokens, positions, plain.block_seconds(positions))


def remove(scratch: Path) -> None:
    """What one length left."""
    shutil.rmtree(scratch / "store")
    (scratch / "cache.safetensors").unlink()


if __name__ == "__main__":
    run_figure(measure)
