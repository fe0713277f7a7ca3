"""The parts of a network whose layers are plain: norm, attention, residual, norm, gated feed-forward, residual.

Knows the module names that Hugging Face gives Llama, Mistral, Qwen2, Qwen3 and what is built alike. Whether a network
that looks so also computes so is not known here: whoever computes by the parts compares numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_FEED_FORWARD = {"gate_proj", "up_proj", "down_proj"}


class NotPlain(Exception):
    """The network is built otherwise; the text says where."""


class Norm(NamedTuple):
    """An RMS norm: weight [width]."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True, eq=False)
class PlainLayer:
    """One layer: its linear maps as the modules that they are, of any kind. head_norms: of queries and of keys.
    scale: what attention scores are multiplied with."""

    first_norm: Norm
    query_key_value: tuple[Any, Any, Any]
    head_norms: tuple[Norm, Norm] | None
    scale: float
    out: Any
    second_norm: Norm
    gate_up: tuple[Any, Any]
    activation: Any
    down: Any


@dataclass(frozen=True, eq=False)
class PlainNetwork:
    """All of a network, from the embedding's module to the head's. logit_factor: see `logit_factor`."""

    embedding: Any
    layers: tuple[PlainLayer, ...]
    norm: Norm
    head: Any
    logit_factor: float


def plain_network(network: Any) -> PlainNetwork:
    """The parts of a Hugging Face causal language model, which is not changed. Raises NotPlain."""
    base = network.base_model
    require(_named(base) == {"embed_tokens", "layers", "norm", "rotary_emb"}, "its base model has other parts")
    return PlainNetwork(
        base.embed_tokens,
        tuple(_layer(layer) for layer in base.layers),
        _norm(base.norm),
        network.get_output_embeddings(),
        logit_factor(network.config),
    )


def logit_factor(config: Any) -> float:
    """What a model multiplies its logits with, by either name that configs have for it."""
    return float(getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0))


def require(holds: bool, otherwise: str) -> None:
    """Raise NotPlain with what is said unless it holds."""
    if not holds:
        raise NotPlain(otherwise)


def _layer(layer: Any) -> PlainLayer:
    require(_named(layer) == _LAYER, "its layers have other parts")
    attention, mlp = layer.self_attn, layer.mlp
    require(_named(attention) in (_ATTENTION, _ATTENTION | _HEAD_NORMS), "its attention has other parts")
    require(_named(mlp) - {"act_fn"} == _FEED_FORWARD, "its feed-forward has other parts")
    head_norms = None
    if hasattr(attention, "q_norm"):
        head_norms = _norm(attention.q_norm), _norm(attention.k_norm)
        of_a_head = all(norm.weight.shape == (attention.head_dim,) for norm in head_norms)
        require(of_a_head, "its head norms are not of one head")
    return PlainLayer(
        first_norm=_norm(layer.input_layernorm),
        query_key_value=(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norms=head_norms,
        scale=float(attention.scaling if hasattr(attention, "scaling") else attention.head_dim**-0.5),
        out=attention.o_proj,
        second_norm=_norm(layer.post_attention_layernorm),
        gate_up=(mlp.gate_proj, mlp.up_proj),
        activation=mlp.act_fn,
        down=mlp.down_proj,
    )


def _norm(module: Any) -> Norm:
    is_known = "RMSNorm" in type(module).__name__ and hasattr(module, "variance_epsilon")
    require(is_known, "its norms are of another kind")
    return Norm(module.weight.data, float(module.variance_epsilon))


def _named(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()}
