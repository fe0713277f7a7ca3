"""Hugging Face's own decoding: its modules, its DynamicCache, its sdpa attention, greedy, a token at a time."""

from __future__ import annotations

import gc
import inspect
from time import perf_counter
from typing import Any

import torch
from shape import Scale
from transformers import DynamicCache


def wait(device: torch.device) -> None:
    """Until the device has done what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """The peak of memory is counted from here."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """The most that tensors took at once since then."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


@torch.inference_mode()
def decode_whole_cache(network: Any, scale: Scale, n_cached: int, n_steps: int, *, cudnn: bool) -> dict[str, Any]:
    """Tokens a second with `n_cached` random keys and values in the cache, of `n_steps` after some to warm up.

    cudnn: sdpa may take cuDNN's attention, as it comes; it makes a plan for every length that it has not seen, which
    takes longer than attention. Otherwise sdpa takes another of its own.
    """
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    try:
        return {"cudnn_attention": cudnn, **_decoded(network, scale, n_cached, n_steps)}
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)


def _decoded(network: Any, scale: Scale, n_cached: int, n_steps: int) -> dict[str, Any]:
    device, config = network.device, scale.config
    reset_peak(device)
    cache = DynamicCache()
    size = (1, config.num_key_value_heads, n_cached, config.hidden_size // config.num_attention_heads)
    for layer in range(config.num_hidden_layers):
        cache.update(*(torch.randn(size, dtype=scale.dtype, device=device) for _ in range(2)), layer)
    named = "cache" if "cache" in inspect.signature(network.forward).parameters else "past_key_values"
    token = torch.zeros((1, 1), dtype=torch.int64, device=device)
    times = []
    for step in range(n_steps + 3):
        wait(device)
        started = perf_counter()
        places = torch.tensor([[n_cached + step]], device=device)
        logits = network(input_ids=token, position_ids=places, use_cache=True, **{named: cache}).logits
        token = logits[:, -1].argmax(-1, keepdim=True)
        int(token)
        times.append(perf_counter() - started)
    taken = sum(times[3:])
    return {
        "n_cached": n_cached,
        "n_steps": n_steps,
        "tokens_per_s": n_steps / taken,
        "median_ms": 1000 * sorted(times[3:])[n_steps // 2],
        "peak_bytes": peak_bytes(device),
    }
