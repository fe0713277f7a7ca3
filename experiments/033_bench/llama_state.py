"""Restore to the first token, against llama.cpp loading a state that it saved: bytes, seconds, first token.

Both models are loaded already, and every side has answered once before it is timed. llama.cpp reads the text once (not
timed here beside the state), saves its state to a file, forgets it, loads it and evaluates the question: tokens that
livingkv reads as well, with as many threads. livingkv opens the store, probes its index for evidence, restores and
reads.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figure import Plan, Row, run_figure, seconds_row

from experiments.growing_store import GrowingStore, folder_bytes
from experiments.haystack import shuffled_filler
from experiments.side_by_side import in_turn
from experiments.timed_asks import first_token_seconds
from livingkv.engine import Engine
from livingkv.model_fetch import fetch_published
from livingkv.model_sources import DEFAULT_MODEL, PUBLISHED, cache_folder
from livingkv.models import load_model
from livingkv.modes import question_ids

QUESTION = "Summarise the last point in one word."
TYPES = {"f16": 1, "q8_0": 8}


def measure(plan: Plan) -> Iterator[Row]:
    """One length after the other, both kinds of cache."""
    gguf = gguf_file(plan)
    model = load_model(plan.model, device=plan.device)
    sentences = shuffled_filler(0)
    for length in plan.chosen(plan.either((4096,), (4096, 16_384))):
        store = plan.scratch / f"store {length}"
        with GrowingStore(store, model, sentences) as growing:
            growing.read(length)
            n_tokens = growing.n_tokens
        ids = [1000 + i % 50_000 for i in range(n_tokens)]
        question = question_ids(Engine.of(model, "int8"), QUESTION)
        sides: dict[str, Callable[[], float]] = {"ours": partial(first_token_seconds, store, model, "resume", QUESTION)}
        facts: dict[str, Any] = {"store bytes": folder_bytes(store), "question tokens": len(question)}
        for kind, number in TYPES.items():
            state = LlamaState(gguf, ids, number, plan.scratch / f"{kind}.state", on_gpu=plan.device != "cpu")
            name = f"llama.cpp, {kind} cache, state from a file"
            sides[name] = partial(state.restore, question)
            facts[name] = {"bytes": state.n_bytes, "save s": state.save_seconds, "read s": state.read_seconds}
        for once in sides.values():
            once()
        found = in_turn(plan.either(7, 15), sides)
        ours = found.pop("ours")
        yield seconds_row("llama state", f"{n_tokens:,} tokens", ours, found, facts=facts)


def gguf_file(plan: Plan) -> Path:
    """The file that was named, else that of the default model, fetched if need be."""
    if plan.gguf is not None:
        return plan.gguf
    if plan.model is not None:
        raise ValueError("llama.cpp needs the same weights as GGUF: --gguf FILE")
    published = PUBLISHED[DEFAULT_MODEL]
    return fetch_published(published, cache_folder(), None)


class LlamaState:
    """A llama.cpp model whose state after the ids lies in a file."""

    def __init__(self, gguf: Path, ids: list[int], type_number: int, path: Path, *, on_gpu: bool) -> None:
        api: Any = importlib.import_module("llama_cpp")
        self._api = api
        self._llama = api.Llama(
            str(gguf), n_ctx=len(ids) + 256, n_batch=512, flash_attn=True, type_k=type_number, type_v=type_number,
            n_gpu_layers=-1 if on_gpu else 0, verbose=False,
            n_threads=torch.get_num_threads(), n_threads_batch=torch.get_num_threads(),
        )  # fmt: skip
        self._path, self._ids = path, ids
        started = time.perf_counter()
        self._llama.eval(ids)
        self.read_seconds = time.perf_counter() - started
        tokens = (api.llama_token * len(ids))(*ids)
        started = time.perf_counter()
        assert api.llama_state_save_file(self._llama.ctx, str(path).encode(), tokens, len(ids))
        self.save_seconds = time.perf_counter() - started
        self.n_bytes = path.stat().st_size

    def restore(self, question: list[int]) -> float:
        """Seconds from the file to the first token of an answer to a question of these tokens."""
        llama, api = self._llama, self._api
        llama.reset()
        api.llama_memory_clear(api.llama_get_memory(llama.ctx), True)
        room, n = (api.llama_token * len(self._ids))(), ctypes.c_size_t(0)
        started = time.perf_counter()
        assert api.llama_state_load_file(llama.ctx, str(self._path).encode(), room, len(room), ctypes.byref(n))
        llama.n_tokens = n.value
        llama.eval(question)
        logits = np.ctypeslib.as_array(api.llama_get_logits(llama.ctx), shape=(llama.n_vocab(),))
        int(logits.argmax())
        return time.perf_counter() - started


if __name__ == "__main__":
    run_figure(measure)
