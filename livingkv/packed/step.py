"""One decode step of a plain decoder: a token for each of a few rows, to logits, by matrices of any kind.

Knows layers, matrices and an attention state; knows no Hugging Face module's forward and nothing of tokens' meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import rms_norm

from livingkv.packed.layers import Layer, PlainDecoder, joined_bias
from livingkv.packed.matrices import Matrix
from livingkv.plain_network import Norm
from livingkv.workspace import AttentionState

MAX_ROWS = 8
"""More rows go through the network's own modules, which are made for many."""


class _Products(NamedTuple):
    """One layer's matrices. bias: of query_key_value."""

    query_key_value: Matrix
    bias: Tensor | None
    out: Matrix
    gate_up: Matrix
    down: Matrix


class PackedStep:
    """Steps of one network, with the products of `layers.groups` done by `matrices`. Not thread-safe."""

    def __init__(self, decoder: PlainDecoder, matrices: Mapping[str, Matrix], head_dim: int) -> None:
        self._decoder = decoder
        self._dim = head_dim
        self._head = matrices["head"]
        self._factor = decoder.logit_factor
        self._layers = [(layer, self._products(index, layer, matrices)) for index, layer in enumerate(decoder.layers)]

    @staticmethod
    def _products(index: int, layer: Layer, matrices: Mapping[str, Matrix]) -> _Products:
        return _Products(
            matrices[f"{index}.query_key_value"],
            joined_bias(layer.query_key_value),
            matrices[f"{index}.out"],
            matrices[f"{index}.gate_up"],
            matrices[f"{index}.down"],
        )

    def hidden(self, token_ids: Tensor, state: AttentionState) -> Tensor:
        """Last hidden states [rows, 1, hidden] of `token_ids` [rows, 1]. The state's begin and finish are the
        caller's."""
        decoder = self._decoder
        x = decoder.embed(token_ids[:, 0])
        for index, (layer, products) in enumerate(self._layers):
            seen = self._attended(index, layer, products, x, state)
            x = x + products.out.product(seen)
            gate, up = products.gate_up.product(_normed(x, layer.second_norm)).chunk(2, -1)
            x = x + products.down.product(layer.activation(gate).mul_(up))
        return _normed(x, decoder.norm)[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in fp32 [rows, vocabulary] of last hidden states [rows, hidden]."""
        logits = self._head.product(hidden).float()
        return logits if self._factor == 1.0 else logits * self._factor

    def _attended(self, index: int, layer: Layer, products: _Products, x: Tensor, state: AttentionState) -> Tensor:
        n_rows = x.shape[0]
        flat = products.query_key_value.product(_normed(x, layer.first_norm))
        if products.bias is not None:
            flat += products.bias
        heads = flat.view(n_rows, -1, 1, self._dim)
        n_query, n_key = (module.out_features // self._dim for module in layer.query_key_value[:2])
        query, key, value = heads[:, :n_query], heads[:, n_query : n_query + n_key], heads[:, n_query + n_key :]
        if layer.head_norms is not None:
            query, key = (_normed(part, norm) for part, norm in zip((query, key), layer.head_norms, strict=True))
        return state.attend(index, query, key, value, layer.scale).reshape(n_rows, -1)


def _normed(x: Tensor, norm: Norm) -> Tensor:
    return rms_norm(x, (x.shape[-1],), norm.weight, norm.epsilon)
