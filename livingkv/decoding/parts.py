"""The parts of a plain network as a recorded step takes them: weights that are used together lie together.

Knows modules and their weights. Whether a network that looks so also computes so is not known here: decoder.py compares
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from livingkv.decoding.attending import HeadNorms
from livingkv.plain_network import Norm, PlainLayer, plain_network, require


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
    plain = plain_network(network)
    require(type(plain.embedding) is nn.Embedding, "its embeddings are of another kind")
    for layer in plain.layers:  # all are looked at before any weight is moved
        _check(layer)
    return Parts(
        embedding=plain.embedding.weight,
        layers=tuple(_layer(layer) for layer in plain.layers),
        norm=plain.norm,
        head=_linear((plain.head,)),
        logit_factor=plain.logit_factor,
    )


def _check(layer: PlainLayer) -> None:
    is_silu = isinstance(layer.activation, nn.SiLU) or type(layer.activation).__name__ == "SiLUActivation"
    require(is_silu, "no SiLU")
    if layer.head_norms is not None:
        query, key = layer.head_norms
        require(query.epsilon == key.epsilon, "its head norms differ")


def _layer(layer: PlainLayer) -> Layer:
    norms = None
    if layer.head_norms is not None:
        query, key = layer.head_norms
        norms = HeadNorms(query.weight, key.weight, query.epsilon)
    sizes = tuple(int(module.out_features) for module in layer.query_key_value)
    return Layer(
        first_norm=layer.first_norm,
        query_key_value=_linear(layer.query_key_value),
        sizes=(sizes[0], sizes[1], sizes[2]),
        head_norms=norms,
        scale=layer.scale,
        out=_linear((layer.out,)),
        second_norm=layer.second_norm,
        gate_up=_linear(layer.gate_up),
        down=_linear((layer.down,)),
    )


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
