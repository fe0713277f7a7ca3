"""The layers of a plain network as packed steps take them: all maps linear, with weights in bf16.

Knows modules and their weights; knows no matrix of codes and no forward pass. Whether a network that looks so also
computes so is not known here: choosing.py compares numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from livingkv.errors import UnsupportedModel
from livingkv.plain_network import Norm, NotPlain, PlainLayer, plain_network, require


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
    logit_factor: float


def plain_decoder(network: Any) -> PlainDecoder:
    """The parts of a Hugging Face causal language model. Raises UnsupportedModel where it is built otherwise."""
    try:
        plain = plain_network(network)
        layers = tuple(_layer(layer) for layer in plain.layers)
        return PlainDecoder(plain.embedding, layers, plain.norm, _linear(plain.head), plain.logit_factor)
    except NotPlain as error:
        raise UnsupportedModel(f"its steps are not packed: {error}") from error


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


def _layer(layer: PlainLayer) -> Layer:
    return Layer(
        first_norm=layer.first_norm,
        query_key_value=tuple(_linear(module) for module in layer.query_key_value),
        head_norms=layer.head_norms,
        scale=layer.scale,
        out=_linear(layer.out),
        second_norm=layer.second_norm,
        gate_up=tuple(_linear(module) for module in layer.gate_up),
        activation=layer.activation,
        down=_linear(layer.down),
    )


def _linear(module: Any) -> nn.Linear:
    require(type(module) is nn.Linear and module.weight.dtype == torch.bfloat16, "its weights are not plain bf16")
    linear: nn.Linear = module
    return linear
