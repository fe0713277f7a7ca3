"""What each layer of a network keeps of a token: KV that grows, KV of a window, or a state of one size.

Read off a network without memory, since configs say it in many ways: whoever has key and value projections keeps KV.
Held against the caches of real networks in tests/planner. Knows transformers' modules; knows no laws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_LINEAR = ("linear_attention", "mamba", "mamba2", "conv", "recurrent")
_FUSED = ("qkv_proj", "query_key_value", "c_attn", "Wqkv")


@dataclass(frozen=True, slots=True)
class LayerKeeps:
    """elements: of a token. window: tokens that are kept; None: all. state_bytes: None where it is not understood.
    shape: (KV heads, head_dim) where keys and values are of one shape, as livingkv's pages need it."""

    elements: int = 0
    window: int | None = None
    state_bytes: int | None = 0
    shape: tuple[int, int] | None = None


def layers_of(network: Any) -> dict[int, list[LayerKeeps]] | None:
    """By number of a layer. None where a layer keeps something that is not understood."""
    config = network.config
    found: dict[int, list[LayerKeeps]] = {}
    for module in network.modules():
        number = getattr(module, "layer_idx", None)
        if not isinstance(number, int):
            continue
        if _is_attention(module, config, number):
            kept = _attention(module, config, number)
        elif getattr(module, "conv1d", None) is not None:
            kept = LayerKeeps(state_bytes=_state_bytes(module))
        elif any(hasattr(module, name) for name in ("mlp", "mixer", "self_attn", "linear_attn", "mamba")):
            continue  # a whole layer: its parts come by themselves
        else:
            return None
        if kept is None:
            return None
        found.setdefault(number, []).append(kept)
    kinds = getattr(config, "layer_types", None) or [None] * config.num_hidden_layers
    silent = [kind for number, kind in enumerate(kinds) if number not in found and kind not in ("mlp", "moe")]
    return None if silent else found


def _is_attention(module: Any, config: Any, number: int) -> bool:
    if _kind(config, number) in _LINEAR:
        return False
    if getattr(module, "is_kv_shared_layer", False):  # it may have no projections of its own
        return True
    return hasattr(module, "k_proj") or hasattr(module, "kv_a_proj_with_mqa") or any(hasattr(module, n) for n in _FUSED)


def _kind(config: Any, number: int) -> str | None:
    kinds = getattr(config, "layer_types", None)
    return kinds[number] if kinds and number < len(kinds) else None


def _attention(module: Any, config: Any, number: int) -> LayerKeeps | None:
    if getattr(module, "is_kv_shared_layer", False):  # it attends what an earlier layer keeps
        return LayerKeeps()
    window = _window(module, config, number)
    if hasattr(module, "kv_a_proj_with_mqa"):  # the latent, as engines keep it that use what MLA is for
        return LayerKeeps(config.kv_lora_rank + config.qk_rope_head_dim, window)
    if hasattr(module, "k_proj"):
        keys = int(module.k_proj.weight.shape[0])
        values = int(module.v_proj.weight.shape[0]) if getattr(module, "v_proj", None) is not None else keys
        dim = getattr(module, "head_dim", None)
        shape = (keys // dim, dim) if keys == values and isinstance(dim, int) and keys % dim == 0 else None
        return LayerKeeps(keys + values, window, 0, shape)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    wide = next(getattr(module, name) for name in _FUSED if hasattr(module, name)).weight.shape
    if config.num_attention_heads * dim + 2 * heads * dim not in wide:
        return None  # the projection is of another width than the config says
    return LayerKeeps(2 * heads * dim, window, 0, (heads, dim))


def _window(module: Any, config: Any, number: int) -> int | None:
    kind = _kind(config, number)
    if kind not in (None, "sliding_attention", "chunked_attention"):
        return None
    differs = getattr(config, "is_heterogeneous", False)  # per_layer_config: each layer has a config of its own
    own = config.per_layer_config[number] if differs else config
    if kind == "chunked_attention":
        return int(own.attention_chunk_size)
    of_module = None if differs else getattr(module, "sliding_window", None)
    window = of_module or getattr(own, "sliding_window", None)
    slides = kind is not None or getattr(own, "use_sliding_window", True) is not False
    return int(window) if window and slides else None


def _state_bytes(module: Any) -> int | None:
    """A convolution's last inputs, 16 bits each, and a recurrent state in fp32, as transformers keeps them."""
    convolution = 2 * module.conv1d.weight.numel()
    a_log = getattr(module, "A_log", None)
    if all(hasattr(module, name) for name in ("num_v_heads", "head_k_dim", "head_v_dim")):
        return int(convolution + 4 * module.num_v_heads * module.head_k_dim * module.head_v_dim)
    if a_log is not None and a_log.dim() == 2:
        return int(convolution + 4 * a_log.numel())
    if a_log is not None and all(hasattr(module, name) for name in ("num_heads", "head_dim", "ssm_state_size")):
        return int(convolution + 4 * module.num_heads * module.head_dim * module.ssm_state_size)
    return None
