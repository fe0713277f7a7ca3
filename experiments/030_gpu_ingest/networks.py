"""Networks of a 7B shape with random weights, in bf16 or NF4, and a plain one over the same weights as the baseline.

Qwen2.5-7B-Instruct-1M's config; its weights decide nothing here that is timed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

SHAPES: dict[str, dict[str, Any]] = {
    "7b": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "dual_chunk_attention_config": {
            "chunk_size": 262144,
            "local_size": 8192,
            "original_max_position_embeddings": 262144,
        },
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 152064,
        "dual_chunk_attention_config": {
            "chunk_size": 2048,
            "local_size": 512,
            "original_max_position_embeddings": 2048,
        },
    },
}


def config_of(shape: str) -> Any:
    """The config of a shape."""
    return AutoConfig.for_model(
        "qwen2",
        max_position_embeddings=1_010_000,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000_000.0},
        tie_word_embeddings=False,
        use_sliding_window=False,
        **SHAPES[shape],
    )


def _empty(config: Any, attention: str) -> Any:
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention)
    return network.eval().requires_grad_(False)


def _fresh_rotary(network: Any, config: Any, device: torch.device) -> None:
    network.model.rotary_emb = type(network.model.rotary_emb)(config).to(device)


def _random(like: Tensor, name: str, device: torch.device, generator: torch.Generator) -> Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(like.shape, dtype=like.dtype, device=device)
    spread = 1.0 if name.endswith("bias") else 1.0 / math.sqrt(like.shape[-1])
    values = torch.empty(like.shape, dtype=like.dtype, device=device)
    return values.normal_(0.0, spread, generator=generator)


def random_network(shape: str, device: torch.device, *, nf4: bool = False, seed: int = 0) -> Any:
    """A random causal language model on a device; with nf4 its linear layers but the last are quantized as they are
    made, so that no more memory is needed than they take."""
    config = config_of(shape)
    network = _empty(config, "eager")
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in list(network.named_parameters()):
        owner = network.get_submodule(name.rpartition(".")[0])
        leaf = name.rpartition(".")[2]
        weight = _random(parameter, name, device, generator)
        if nf4 and leaf == "weight" and isinstance(owner, nn.Linear) and "lm_head" not in name:
            parent = network.get_submodule(name.split(".")[:-2] and ".".join(name.split(".")[:-2]))
            setattr(parent, name.split(".")[-2], _nf4(owner, weight))
        else:
            setattr(owner, leaf, nn.Parameter(weight, requires_grad=False))
    _fresh_rotary(network, config, device)
    return network


def _nf4(layer: nn.Linear, weight: Tensor) -> nn.Module:
    import bitsandbytes  # type: ignore[import-not-found, unused-ignore]

    packed: nn.Module = bitsandbytes.nn.Linear4bit(
        layer.in_features,
        layer.out_features,
        bias=layer.bias is not None,
        compute_dtype=torch.bfloat16,
        compress_statistics=True,
        quant_type="nf4",
        device="meta",
    )
    packed.weight = bitsandbytes.nn.Params4bit(
        weight.cpu(), requires_grad=False, quant_type="nf4", compress_statistics=True, module=packed
    ).to(weight.device)
    packed.bias = layer.bias
    return packed


def plain_over(network: Any, device: torch.device) -> Any:
    """Another network over the same weights, with PyTorch's attention (flash kernels on a GPU), as Hugging Face's users
    run it."""
    plain = _empty(network.config, "sdpa")
    plain.load_state_dict(network.state_dict(), assign=True)
    _fresh_rotary(plain, network.config, device)
    return plain.requires_grad_(False)


def matrix_parameters(network: Any) -> int:
    """Numbers that a token is multiplied with in the layers; no embeddings, no head."""
    return sum(parameter.numel() for name, parameter in network.model.layers.named_parameters() if parameter.ndim == 2)
