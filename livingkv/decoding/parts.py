"""The parts of a network whose layers are plain: norm, attention, residual, norm, gated feed-forward, residual.

Knows the module names that Hugging Face gives Llama, Mistral, Qwen2, Qwen3 and what is built alike. Whether a network
that looks so also computes so is not known here: decoder.py compares numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from livingkv.decoding.attending import HeadNorms

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj"}


class NotPlain(Exception):
    """The network is built otherwise; the text says where."""


@dataclass(frozen=True, eq=False)
class Norm:
    """An RMS norm: weight [hidden]."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True, eq=False)
class Linear:
    """Linear maps of one input, their outputs side by side.

    modules: one or several. weight [outputs, inputs] and bias [outputs] where they are plain tensors, and then the
    modules' own are views of them; None where they are packed.
    """

    modules: tuple[Any, ...]
    weight: Tensor | None
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer. Outputs of `query_key_value` are of `sizes`; `gate_up` has the gates first."""

    first_norm: Norm
    query_key_value: Linear
    sizes: tuple[int, int, int]
    head_norms: HeadNorms | None
    scale: float
    out: Linear
    second_norm: Norm
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, eq=False)
class Parts:
    """All of a network."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear
    logit_factor: float


def parts_of(network: Any) -> Parts:
    """The parts of a Hugging Face causal language model. Raises NotPlain.

    Plain weights that are used together (query, key and value; gate and up) are moved into one tensor each, which their
    modules go on to use as views: memory is as before, and so is what the modules compute.
    """
    base = network.base_model
    _require(_named(base) == {"embed_tokens", "layers", "norm", "rotary_emb"}, "its base model has other parts")
    embedding = base.embed_tokens
    _require(type(embedding) is nn.Embedding, "its embeddings are of another kind")
    head = network.get_output_embeddings()
    for layer in base.layers:  # all are looked at before any weight is moved
        _check(layer)
    config = network.config
    return Parts(
        embedding=embedding.weight,
        layers=tuple(_layer(layer) for layer in base.layers),
        norm=_norm(base.norm),
        head=_linear((head,)),
        logit_factor=getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0),
    )


def _check(layer: Any) -> None:
    _require(_named(layer) == _LAYER, "its layers have other parts")
    attention, mlp = _named(layer.self_attn), _named(layer.mlp)
    _require(attention in (_ATTENTION, _ATTENTION | {"q_norm", "k_norm"}), "its attention has other parts")
    _require(mlp - {"act_fn"} == _MLP, "its feed-forward has other parts")
    _require(isinstance(layer.mlp.act_fn, nn.SiLU) or type(layer.mlp.act_fn).__name__ == "SiLUActivation", "no SiLU")
    for name in ("input_layernorm", "post_attention_layernorm"):
        _norm(getattr(layer, name))
    if "q_norm" in attention:
        dim = layer.self_attn.head_dim
        norms = _norm(layer.self_attn.q_norm), _norm(layer.self_attn.k_norm)
        _require(all(norm.weight.shape == (dim,) for norm in norms), "its head norms are not of one head")
        _require(norms[0].epsilon == norms[1].epsilon, "its head norms differ")


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    inward = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = None
    if hasattr(attention, "q_norm"):
        query, key = _norm(attention.q_norm), _norm(attention.k_norm)
        norms = HeadNorms(query.weight, key.weight, query.epsilon)
    sizes = tuple(int(module.out_features) for module in inward)
    return Layer(
        first_norm=_norm(layer.input_layernorm),
        query_key_value=_linear(inward),
        sizes=(sizes[0], sizes[1], sizes[2]),
        head_norms=norms,
        scale=_scale(attention),
        out=_linear((attention.o_proj,)),
        second_norm=_norm(layer.post_attention_layernorm),
        gate_up=_linear((mlp.gate_proj, mlp.up_proj)),
        down=_linear((mlp.down_proj,)),
    )


def _scale(attention: Any) -> float:
    return float(attention.scaling if hasattr(attention, "scaling") else attention.head_dim**-0.5)


def _norm(module: Any) -> Norm:
    known = "RMSNorm" in type(module).__name__ and hasattr(module, "variance_epsilon")
    _require(known, "its norms are of another kind")
    return Norm(module.weight, float(module.variance_epsilon))


def _linear(modules: Sequence[Any]) -> Linear:
    plain = all(type(module) is nn.Linear and module.weight.is_floating_point() for module in modules)
    if not plain:
        return Linear(tuple(modules), None, None)
    weight = _joined([module.weight for module in modules])
    biases = [module.bias for module in modules if module.bias is not None]
    if biases and len(biases) < len(modules):
        return Linear(tuple(modules), None, None)
    return Linear(tuple(modules), weight, _joined(biases) if biases else None)


def _joined(parts: Sequence[Any]) -> Tensor:
    """The parameters one below the other as one tensor, of which they become views. Those that are so already stay."""
    first = parts[0]
    if len(parts) == 1:
        whole: Tensor = first.data
        return whole
    ends = list(_ends(parts))
    together = all(part.data_ptr() == end for part, end in zip(parts[1:], ends[:-1], strict=True))
    if together and first.untyped_storage().data_ptr() == parts[-1].untyped_storage().data_ptr():
        size = (sum(part.shape[0] for part in parts), *first.shape[1:])
        return torch.as_strided(first.data, size, first.data.stride())
    joined = torch.cat([part.data for part in parts])
    lo = 0
    for part in parts:
        part.data = joined[lo : lo + part.shape[0]]
        lo += part.shape[0]
    return joined


def _ends(parts: Sequence[Tensor]) -> Iterator[int]:
    return (part.data_ptr() + part.nbytes for part in parts)


def _named(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()}


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise NotPlain(otherwise)
