"""A language model ready for use: the network, its tokenizer, and the facts that the rest of livingkv needs of it.

`load_model` finds, fetches, checks and loads; `from_network` takes a network that is already in memory. Both refuse, with
the reason, what has no growing rotary KV cache. Knows nothing of stores, sessions or recall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from livingkv.model_rope import DualChunk, Rope, read_rope, rope_text

__all__ = ["DualChunk", "LoadedModel", "ModelShape", "Rope", "from_network"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a network. `native_context` is the number of tokens that it was trained to tell apart."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    native_context: int


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A network in eval mode without gradients, its tokenizer, and what was read from them.

    key_bias: per layer the bias that k_proj adds to every key before rotation, [n_kv_heads, head_dim]; None where there is
    none or where a norm follows.
    stop_ids: token ids that end an answer.
    """

    name: str
    network: Any
    tokenizer: Any
    shape: ModelShape
    rope: Rope
    dtype: torch.dtype
    device: torch.device
    key_bias: tuple[Tensor | None, ...]
    dual_chunk: DualChunk | None
    stop_ids: frozenset[int]
    model_digest: str
    tokenizer_digest: str
    rope_text: str
    quantization: str


def from_network(
    network: Any,
    tokenizer: Any,
    *,
    name: str = "network",
    dual_chunk: DualChunk | None = None,
    quantization: str = "none",
) -> LoadedModel:
    """A `LoadedModel` of a network that is in memory already. Puts it in eval mode and switches gradients off."""
    network.eval().requires_grad_(False)
    config = network.config
    rope = read_rope(network.base_model.rotary_emb)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = ModelShape(
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        vocab_size=config.vocab_size,
        native_context=config.max_position_embeddings,
    )
    biases = [getattr(layer.self_attn.k_proj, "bias", None) for layer in network.base_model.layers]
    return LoadedModel(
        name=name,
        network=network,
        tokenizer=tokenizer,
        shape=shape,
        rope=rope,
        dtype=network.dtype,
        device=network.device,
        key_bias=tuple(None if bias is None else bias.detach().view(-1, head_dim) for bias in biases),
        dual_chunk=dual_chunk or DualChunk.from_config(config),
        stop_ids=frozenset({tokenizer.eos_token_id}),
        model_digest="unset",
        tokenizer_digest="unset",
        rope_text=rope_text(config, rope),
        quantization=quantization,
    )
