"""How many tokens of a document one forward pass may hold on a GPU.

Knows sizes of a network and of a device's memory; knows no text. The window of a pass and what its layers compute
grow with its tokens: no more of them than a share of the memory holds.
"""

from __future__ import annotations

from typing import Any

import torch

from livingkv.models import LoadedModel

_SHARE = 8
"""A pass may take one part in so many of a device's memory: the weights are there as well, and a recalled context."""


def fitting_tokens(model: LoadedModel, device_bytes: int) -> int:
    """The largest power of two of tokens whose pass fits into its share of `device_bytes`, at least 256."""
    tokens = device_bytes // _SHARE // _bytes_per_token(model)
    return max(256, 1 << max(0, tokens.bit_length() - 1))


def _bytes_per_token(model: LoadedModel) -> int:
    """Keys and values of all layers, and what one layer holds at once: three times its widest part and a dozen hidden
    states."""
    shape, config = model.shape, model.network.config
    hidden = int(config.hidden_size)
    widest: Any = getattr(config, "intermediate_size", None)
    width = int(widest) if isinstance(widest, int) else 4 * hidden
    kv = 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim
    return (kv + 3 * width + 12 * hidden) * model.dtype.itemsize


def device_bytes(device: torch.device) -> int:
    """Memory of a CUDA device that this process may have: all of it, or the share that PyTorch was held to."""
    total = torch.cuda.get_device_properties(device).total_memory
    asked = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return int(total * (asked(device) if asked is not None else 1.0))
