"""llama.cpp through llama-cpp-python's plain C functions: decode steps behind a cache of any length, and what it says.

A long cache is filled without reading a long text: what it holds after one stretch is put in again and again, each copy
moved on to its own positions and shown to the sequence that decodes. A step takes as long as behind a text of that
length, which is all that is asked of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np

STRETCH = 2048
"""Tokens that are read and then copied."""

_BATCH = 512


class LlamaCpp:
    """One model in one context of `capacity` tokens, f16 cache, flash attention. Not thread-safe."""

    def __init__(self, gguf: Path, capacity: int, n_threads: int) -> None:
        lib: Any = llama_cpp
        self._lib = lib
        lib.llama_backend_init()
        self._quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self._quiet, None)
        self._model = lib.llama_model_load_from_file(str(gguf).encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = capacity, _BATCH, _BATCH
        params.n_threads = params.n_threads_batch = n_threads
        params.n_seq_max, params.kv_unified = capacity // STRETCH + 1, True
        params.flash_attn_type = 1
        self._context = lib.llama_init_from_model(self._model, params)
        self._memory = lib.llama_get_memory(self._context)
        self._n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._n_copies = 0
        self._state: Any = None

    def read(self, ids: Sequence[int]) -> None:
        """Into the sequence that decodes; no logits but the last."""
        for lo in range(0, len(ids), _BATCH):
            part = list(ids[lo : lo + _BATCH])
            tokens = (self._lib.llama_token * len(part))(*part)
            status = self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(tokens, len(part)))
            assert status == 0, f"llama_decode says {status}"

    def clear(self) -> None:
        """Forget everything."""
        self._lib.llama_memory_clear(self._memory, True)
        self._n_copies = 0

    def fill(self, ids: Sequence[int], n_tokens: int) -> None:
        """Have `n_tokens` in the cache, a multiple of STRETCH and no less than before; `ids`: one stretch."""
        lib = self._lib
        if self._state is None:
            self.read(ids[:STRETCH])
            self._state = (ctypes.c_uint8 * lib.llama_state_seq_get_size(self._context, 0))()
            assert lib.llama_state_seq_get_data(self._context, self._state, len(self._state), 0)
            self._n_copies = 1
        while self._n_copies * STRETCH < n_tokens:
            sequence = self._n_copies
            assert lib.llama_state_seq_set_data(self._context, self._state, len(self._state), sequence)
            lib.llama_memory_seq_add(self._memory, sequence, -1, -1, sequence * STRETCH)
            lib.llama_memory_seq_cp(self._memory, sequence, 0, -1, -1)
            self._n_copies += 1
        assert lib.llama_memory_seq_pos_max(self._memory, 0) == n_tokens - 1, "the copies stand one behind the other"

    def step_seconds(self, n_steps: int) -> list[float]:
        """What each of some decode steps takes, logits included; the cache is as before afterwards."""
        behind = self._lib.llama_memory_seq_pos_max(self._memory, 0) + 1
        seconds = []
        for index in range(n_steps):
            started = perf_counter()
            self.read([1000 + index])
            self._logits()
            seconds.append(perf_counter() - started)
        self._lib.llama_memory_seq_rm(self._memory, 0, behind, -1)
        return seconds

    def log_probabilities(self, ids: Sequence[int], n_before: int) -> np.ndarray:
        """After each of the tokens from `n_before` - 1 on but the last: float32 [tokens, vocabulary]."""
        self.clear()
        self.read(ids[:n_before])
        rows = [self._logits()]
        for token in ids[n_before:-1]:
            self.read([token])
            rows.append(self._logits())
        logits = np.stack(rows)
        logits -= logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        return logits

    def _logits(self) -> np.ndarray:
        values = self._lib.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(values, shape=(self._n_vocab,)).copy()
