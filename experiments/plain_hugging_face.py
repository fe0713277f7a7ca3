"""A model as plain Hugging Face runs it, at the level of token ids and caches: the baseline of what is timed.

Shares nothing with livingkv's attention. Knows the caches of transformers and how to fill one without reading text,
because what a step costs depends on a cache's length and not on what is in it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, QuantizedCache

BLOCK = 512
CacheKind = Literal["dynamic", "offloaded", "hqq4", "fp8"]
CACHE_NAMES: dict[CacheKind, str] = {
    "dynamic": "Hugging Face, DynamicCache",
    "offloaded": "Hugging Face, DynamicCache with offloading",
    "hqq4": "Hugging Face, QuantizedCache, hqq 4 bits",
    "fp8": "Hugging Face, QuantizedCache, fp8",
}
assert tuple(CACHE_NAMES) == get_args(CacheKind)


class PlainHuggingFace:
    """The same weights in bf16, sdpa attention over all of the cache."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.device = torch.device(device)
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
        self._network = network.to(self.device).eval()
        names = inspect.signature(self._network.model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self.config = self._network.config

    @property
    def bytes_per_token(self) -> int:
        """Of keys and values as a cache of the model's dtype holds them."""
        config = self.config
        return int(2 * 2 * config.num_hidden_layers * config.num_key_value_heads * self._head_dim)

    @property
    def _head_dim(self) -> int:
        return int(getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads)

    def cache(self, kind: CacheKind = "dynamic") -> Any:
        """An empty cache. Raises what transformers raises where the kind cannot be had here, such as ImportError."""
        if kind == "dynamic":
            return DynamicCache()
        if kind == "offloaded":
            return DynamicCache(offloading=True)
        if kind == "fp8":
            return QuantizedCache("fp8", self.config)
        return QuantizedCache("hqq", self.config, nbits=4, axis_key=1, axis_value=1)

    def filled(self, n_tokens: int, kind: CacheKind = "dynamic") -> Any:
        """A cache as after `n_tokens` tokens, of random content. Raises as `cache`."""
        cache, generator = self.cache(kind), torch.Generator(self.device).manual_seed(n_tokens)
        shape = (1, self.config.num_key_value_heads, n_tokens, self._head_dim)
        for layer in range(self.config.num_hidden_layers if n_tokens else 0):
            keys, values = (
                torch.randn(shape, generator=generator, device=self.device, dtype=torch.bfloat16) for _ in range(2)
            )
            cache.update(keys, values, layer)
        return cache

    def some_ids(self, n: int) -> Tensor:
        """Token ids [n] that the model has."""
        ids: Tensor = torch.arange(n) % (self.config.vocab_size // 2)
        return ids

    @torch.inference_mode()
    def read(self, ids: Tensor, cache: Any) -> None:
        """Prefill in blocks, without logits."""
        for part in torch.split(ids, BLOCK):
            self._network.model(part[None].to(self.device), use_cache=True, **{self._cache_name: cache})
        self.wait()

    def seconds_behind(self, ids: Tensor, cache: Any) -> float:
        """Time to read `ids` block by block, each behind the cache as it was given: a window that does not grow."""
        length, total = cache.get_seq_length(), 0.0
        for part in torch.split(ids, BLOCK):
            started = time.perf_counter()
            self.read(part, cache)
            total += time.perf_counter() - started
            cache.crop(length - cache.get_seq_length())  # negative: tokens to remove, in every version
        return total

    @torch.inference_mode()
    def first_token(self, ids: Tensor, cache: Any) -> int:
        """Prefill the question and pick the first token."""
        out = self._network(ids[None].to(self.device), use_cache=True, logits_to_keep=1, **{self._cache_name: cache})
        return int(out.logits[0, -1].argmax())

    def step_seconds(self, cache: Any, n_steps: int) -> list[float]:
        """The time of each of `n_steps` tokens that are generated behind the cache, which grows by them."""
        token, seconds = self.some_ids(1), []
        for _ in range(n_steps):
            started = time.perf_counter()
            token = torch.tensor([self.first_token(token, cache)])
            seconds.append(time.perf_counter() - started)
        return seconds

    def block_seconds(self, positions: Sequence[int]) -> list[float]:
        """The time of one block of 512 behind a full cache of each of these lengths. Uses the memory of the longest."""
        ids = self.some_ids(BLOCK)
        return [self.seconds_behind(ids, self.filled(position)) for position in positions]

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def prefill_seconds(n_tokens: int, positions: Sequence[int], block_seconds: Sequence[float]) -> float:
    """What reading `n_tokens` takes, from blocks timed at positions from 0 to n_tokens: the area under the line through
    them. A block's time is linear in its position, so that few are enough."""
    assert positions[0] == 0 and positions[-1] == n_tokens, "they span the text"
    pairs = zip(positions, positions[1:], block_seconds, block_seconds[1:], strict=False)
    return sum((hi - lo) / BLOCK * (first + last) / 2 for lo, hi, first, last in pairs)
