"""Attention of one decode step: the interface that a network's step calls, and the plain torch behind it.

The plain one is the reference of the kernels (kernels.py) and what a step without a GPU runs. It goes by the rows that
the host wrote, so it cannot be recorded.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from livingkv.attention import Partition, attend
from livingkv.decoding.table import MAX_RUNS, Angles, Table
from livingkv.positions import Rotation, rotate


class HeadNorms(NamedTuple):
    """RMS norms of every query and key head before they are rotated: weights [head_dim]."""

    query: Tensor
    key: Tensor
    epsilon: float


class StepAttention(Protocol):
    """Attention of `n_rows` rows, a token each, against the slots that the table names."""

    def begin(self, n_rows: int) -> None:
        """What all layers of a step share. The table was written."""
        ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, norms: HeadNorms | None
    ) -> Tensor:
        """Query [rows, heads * dim], key and value [rows, kv_heads * dim], unrotated, rows any distance apart; writes
        the new keys, rotated, and values into the rows' own slots. Returns [rows, heads * dim]."""
        ...


class TorchAttention:
    """See StepAttention. One row after the other, by `livingkv.attention`."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._angles: Angles | None = None
        self._factors: list[float] = []

    def begin(self, n_rows: int) -> None:
        """See StepAttention."""
        self._angles = self._table.angles(n_rows)
        self._factors = self._table.factors(n_rows).tolist()

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, norms: HeadNorms | None
    ) -> Tensor:
        """See StepAttention."""
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for index in range(query.shape[0]):
            one = slice(index, index + 1)
            out[one] = self._row(layer, index, query[one], key[one], value[one], scale * self._factors[index], norms)
        return out

    def _row(
        self, layer: int, index: int, query: Tensor, key: Tensor, value: Tensor, scale: float, norms: HeadNorms | None
    ) -> Tensor:
        row = self._table.rows[index]
        dim = row.space.keys.shape[3]
        queries, keys, values = (part.reshape(1, -1, 1, dim) for part in (query, key, value))
        if norms is not None:
            queries = rms_norm(queries, norms.query, norms.epsilon)
            keys = rms_norm(keys, norms.key, norms.epsilon)
        row.space.keys[layer, :, row.end] = rotate(keys, self._rotation(index, MAX_RUNS - 1))[0, :, 0]
        row.space.values[layer, :, row.end] = values[0, :, 0]
        parts, lo = [], row.start
        for run, (hi, _) in enumerate(row.runs):
            seen = row.space.layer_view(layer, lo, hi)
            parts.append(Partition(rotate(queries, self._rotation(index, run)), seen.keys, seen.values))
            lo = hi
        return attend(parts, scale).reshape(1, -1)

    def _rotation(self, index: int, run: int) -> Rotation:
        assert self._angles is not None, "begin comes first"
        cos, sin = (part[index, run][None] for part in self._angles)
        return Rotation(torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """As Hugging Face's Llama and Qwen compute it: in fp32, rounded to x's dtype before the weight."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(x.dtype)
