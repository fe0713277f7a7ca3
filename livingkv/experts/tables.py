"""Codings with their codes looked up in tables instead of computed: fewer passes over memory, the same numbers.

A code or a pair of them is a byte, and a byte has 256 values, which the references compute. Whoever uses these lets
`kernel_gate.py` compare them first. Knows bytes; refuses to know scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from livingkv.experts.codings import BlockFp8, Coding, Mxfp4, Nvfp4, widened
from livingkv.experts.fp4 import unpacked


def with_tables(coding: Coding) -> Coding | None:
    """The same coding by tables, or None where there are none for it."""
    if isinstance(coding, BlockFp8):
        return replace(coding, decode=widened_by_table)
    if isinstance(coding, (Mxfp4, Nvfp4)):
        return replace(coding, decode=unpacked_by_table)
    return None


def unpacked_by_table(packed: Tensor) -> Tensor:
    """As `unpacked`: both fp32 values of a byte are moved as one number of 64 bits."""
    found = _looked_up(packed, lambda codes: unpacked(codes).view(torch.int64))
    return found.view(torch.float32)


def widened_by_table(codes: Tensor) -> Tensor:
    """As `widened`, for any type of one byte."""
    return _looked_up(codes, lambda all_codes: widened(all_codes.view(codes.dtype)))


def _looked_up(codes: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor:
    table = values(torch.arange(256, dtype=torch.uint8, device=codes.device).unsqueeze(-1)).flatten()
    numbers = codes.view(torch.uint8).reshape(-1).to(torch.int32)
    return torch.index_select(table, 0, numbers).view(codes.shape)
