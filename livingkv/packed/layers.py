"""The layers of a plain decoder: norm, attention, residual, norm, gated feed-forward, residual, all maps linear.

Knows the module names that Hugging Face gives Llama, Mistral, Qwen2, Qwen3 and what is built alike. Whether a network
that looks so also computes so is not known here: choosing.py compares numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from livingkv.errors import UnsupportedModel

_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_FEED_FORWARD = {"gate_proj", "up_proj", "down_proj"}


class Norm(NamedTuple):
    """An RMS norm: weight [width]."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer. query_key_value and gate_up: modules with one input, whose outputs are wanted side by side."""

    first_norm: Norm
    query_key_value: tuple[nn.Linear, ...]
    head_norms: tuple[Norm, Norm] | None
    scale: float
    out: nn.Linear
    second_norm: Norm
    gate_up: tuple[nn.Linear, ...]
    activation: Callable[[Tensor], Tensor]
    down: nn.Linear


@dataclass(frozen=True, eq=False)
class PlainDecoder:
    """All of a network: token ids to logits."""

    embed: Callable[[Tensor], Tensor]
    layers: tuple[Layer, ...]
    norm: Norm
    head: nn.Linear


def plain_decoder(network: Any) -> PlainDecoder:
    """The parts of a Hugging Face causal language model. Raises UnsupportedModel where it is built otherwise."""
    base = network.base_model
    _require(_named(base) == {"embed_tokens", "layers", "norm", "rotary_emb"}, "its base model has other parts")
    return PlainDecoder(
        base.embed_tokens,
        tuple(_layer(layer) for layer in base.layers),
        _norm(base.norm),
        _linear(network.get_output_embeddings()),
    )


def groups(decoder: PlainDecoder) -> Iterator[tuple[str, tuple[nn.Linear, ...]]]:
    """Every product of a step by name, with the modules that it does the work of."""
    for index, layer in enumerate(decoder.layers):
        yield f"{index}.query_key_value", layer.query_key_value
        yield f"{index}.out", (layer.out,)
        yield f"{index}.gate_up", layer.gate_up
        yield f"{index}.down", (layer.down,)
    yield "head", (decoder.head,)


def joined_weight(modules: Sequence[nn.Linear]) -> Tensor:
    """Weights one below the other, [outputs, inputs]; a single one is not copied."""
    weights = [module.weight.data for module in modules]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def joined_bias(modules: Sequence[nn.Linear]) -> Tensor | None:
    """The same of biases, zeros for a module that has none; None where no module has one."""
    if all(module.bias is None for module in modules):
        return None
    return torch.cat([m.weight.new_zeros(m.out_features) if m.bias is None else m.bias.data for m in modules])


def _layer(layer: Any) -> Layer:
    _require(_named(layer) == _PARTS, "its layers have other parts")
    attention, mlp = layer.self_attn, layer.mlp
    _require(_named(attention) in (_ATTENTION, _ATTENTION | _HEAD_NORMS), "its attention has other parts")
    _require(_named(mlp) - {"act_fn"} == _FEED_FORWARD, "its feed-forward has other parts")
    _require(hasattr(attention, "scaling"), "its attention does not say its scale")
    has_norms = hasattr(attention, "q_norm")
    return Layer(
        first_norm=_norm(layer.input_layernorm),
        query_key_value=tuple(_linear(getattr(attention, name)) for name in ("q_proj", "k_proj", "v_proj")),
        head_norms=(_norm(attention.q_norm), _norm(attention.k_norm)) if has_norms else None,
        scale=float(attention.scaling),
        out=_linear(attention.o_proj),
        second_norm=_norm(layer.post_attention_layernorm),
        gate_up=(_linear(mlp.gate_proj), _linear(mlp.up_proj)),
        activation=mlp.act_fn,
        down=_linear(mlp.down_proj),
    )


def _norm(module: Any) -> Norm:
    is_known = "RMSNorm" in type(module).__name__ and hasattr(module, "variance_epsilon")
    _require(is_known, "its norms are of another kind")
    return Norm(module.weight.data, float(module.variance_epsilon))


def _linear(module: Any) -> nn.Linear:
    _require(type(module) is nn.Linear and module.weight.dtype == torch.bfloat16, "its weights are not plain bf16")
    linear: nn.Linear = module
    return linear


def _named(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()}


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise UnsupportedModel(f"its steps are not packed: {reason}")
