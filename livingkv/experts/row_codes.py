"""Rows that are stored as codes with scales: which types there are, and what numbers they mean.

A scale belongs to a row or a part of it, to a block of rows, or to a whole tensor; each row is read with its own.
Knows types and tensors; refuses to know files.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from livingkv.errors import ModelDamaged, UnsupportedModel
from livingkv.experts.codings import e8m0
from livingkv.experts.formats import TORCH_TYPES

PLAIN_TYPES = ("F64", "F32", "F16", "BF16")
CODE_TYPES = ("F8_E4M3", "F8_E5M2", "I8")
SCALE_TYPES = ("F32", "BF16", "F16", "F8_E8M0")
_BLOCK = 128


class Sharing(NamedTuple):
    """Which values a scale is for: so many rows, one after the other, and so many neighbours in each."""

    n_rows: int
    n_values: int


def sharing_of(name: str, n_rows: int, width: int, shape: tuple[int, ...]) -> Sharing:
    """How scales of that shape belong to a tensor of [n_rows, width]: [n_rows] and [n_rows, k] to rows, a number for
    each block of 128 x 128 (the last ones may be cut) to blocks, [] and [1] to all. Raises ModelDamaged for others."""
    if shape in ((), (1,)):
        return Sharing(n_rows, width)
    n_scales = shape[1] if len(shape) == 2 else 1
    if len(shape) <= 2 and shape[0] == n_rows and n_scales and width % n_scales == 0:
        return Sharing(1, width // n_scales)
    if shape == (-(-n_rows // _BLOCK), -(-width // _BLOCK)):
        return Sharing(_BLOCK, _BLOCK)
    raise ModelDamaged(f"{name}: its scales are {list(shape)}, which do not belong to {n_rows} rows of {width} numbers")


def require_types(name: str, values: str, scales: str | None) -> None:
    """Raise UnsupportedModel for types, by safetensors' names, whose meaning is not certain: codes without scales,
    plain numbers with scales, and scales that are no numbers of their own (bytes may be E8M0 or anything)."""
    if scales is None:
        if values not in PLAIN_TYPES:
            raise UnsupportedModel(f"{name}: its rows are {values} without scales; {', '.join(PLAIN_TYPES)} are read")
    elif values not in CODE_TYPES:
        raise UnsupportedModel(f"{name}: its rows are {values} with scales; {', '.join(CODE_TYPES)} are read so")
    elif scales not in SCALE_TYPES:
        raise UnsupportedModel(f"{name}: its scales are {scales}; {', '.join(SCALE_TYPES)} are read")


def decoded_rows(values: Tensor, scales: Tensor, n_values: int) -> Tensor:
    """[n, width] codes and [n, k] scales, a scale for so many neighbours, as fp32 in new memory."""
    factors = scales.float().repeat_interleave(n_values, dim=1)[:, : values.shape[1]]
    return values.float().mul_(factors)


def decoded_table(values: Tensor, scales: Tensor, sharing: Sharing) -> Tensor:
    """The reference for `decoded_rows`: all rows of one stored tensor at once, scale by scale, in fp32."""
    found = values.to(torch.float32)
    factors = e8m0(scales) if scales.dtype == TORCH_TYPES["F8_E8M0"] else scales.to(torch.float32)
    grid = factors.reshape(-(-len(values) // sharing.n_rows), -1)
    for i, row in enumerate(grid):
        for j, factor in enumerate(row):
            rows = slice(i * sharing.n_rows, (i + 1) * sharing.n_rows)
            found[rows, j * sharing.n_values : (j + 1) * sharing.n_values] *= factor
    return found
