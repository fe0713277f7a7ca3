"""Codes for a matrix of weights: the nearest ones of 8 bits, and fitted scales for 4 bits.

Knows tensors; knows no kernel and no network. Works in strips of rows, so that memory for fp32 copies stays small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from livingkv.packed.matrices import GROUP, Int4Codes, Int8Matrix

_STRIP_VALUES = 1 << 18
"""Weights at once: their fp32 copies stay in a core's cache."""

_AS_FINE_AS_INT8 = 0.006
"""Relative error of codes of 4 bits that are no worse than 8: those of Qwen2.5's 8-bit codes are 0.008 to 0.02."""

_LOOK_ROWS = 16


class _Range(NamedTuple):
    """The weights of a group reach over `steps` steps, the least of them at code `first`."""

    steps: float
    first: float


_WHOLE_AND_SHRUNK = tuple(_Range(15 / share, (15 - 15 / share) / 2) for share in (1.0, 0.94, 0.88, 0.82))
"""A range that leaves the outermost weights out has finer steps."""

_FROM_FOUR_BITS = tuple(_Range(steps, 0) for steps in (15, 14, 13, 12, 11))
"""Codes that were there before: a group need not hold the largest of them."""


def int8_of(weight: Tensor) -> Int8Matrix:
    """The nearest codes to weight [outputs, inputs], the largest of each row at 127."""
    codes = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(weight.shape[0], dtype=torch.bfloat16)
    for rows in _strips(weight):
        wide = weight[rows].float()
        scale = (wide.abs().amax(1) / 127).bfloat16()
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        codes[rows] = (wide / scale.float()[:, None]).round().clamp(-127, 127).char()
        scales[rows] = scale
    return Int8Matrix(codes, scales)


def int4_of(weight: Tensor) -> Int4Codes:
    """Codes of 4 bits with the least squared error among a few ranges for each group of 32, each refined once by a
    least-squares fit of scale and middle to its codes (as GGUF's k-quants are made)."""
    return _int4(weight, _WHOLE_AND_SHRUNK)


def coarse_int4(weight: Tensor) -> Int4Codes:
    """The same from each group's whole range alone: a third of the time, for what need not be close."""
    return _int4(weight, _WHOLE_AND_SHRUNK[:1])


def found_int4(weight: Tensor) -> Int4Codes | None:
    """The codes of 4 bits that the weights were made of, as those of GGUF's Q4_K, Q4_0 and Q4_1; None where they were
    not. A matrix that was not is looked at for a few rows only."""
    if _error(weight[:_LOOK_ROWS], _int4(weight[:_LOOK_ROWS], _FROM_FOUR_BITS)) > _AS_FINE_AS_INT8:
        return None
    found = _int4(weight, _FROM_FOUR_BITS)
    return found if _error(weight, found) <= _AS_FINE_AS_INT8 else None


def _error(weight: Tensor, coded: Int4Codes) -> float:
    """The length of the difference by the length."""
    off = whole = 0.0
    for rows in _strips(weight):
        wide = weight[rows].float()
        part = Int4Codes(coded.codes[rows], coded.scales[rows], coded.middles[rows])
        off, whole = off + float((part.values() - wide).square().sum()), whole + float(wide.square().sum())
    return (off / whole) ** 0.5 if whole else 0.0


def _int4(weight: Tensor, ranges: Sequence[_Range]) -> Int4Codes:
    n_groups = weight.shape[1] // GROUP
    codes = torch.empty(weight.shape, dtype=torch.uint8)
    scales = torch.empty((weight.shape[0], n_groups), dtype=torch.bfloat16)
    middles = torch.empty_like(scales)
    for rows in _strips(weight):
        code, scale, middle = _fitted(weight[rows].float().view(-1, n_groups, GROUP), ranges)
        codes[rows], scales[rows], middles[rows] = code.flatten(1).byte(), scale[..., 0], middle[..., 0]
    return Int4Codes(codes, scales, middles)


def _fitted(groups: Tensor, ranges: Sequence[_Range]) -> tuple[Tensor, Tensor, Tensor]:
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    best = [torch.zeros_like(groups), torch.ones_like(low), torch.zeros_like(low)]
    least = torch.full_like(low, torch.inf)
    for steps, first in ranges:
        scale = (high - low) / steps
        middle = low + (8 - first) * scale
        for is_last in (False, True):
            code, scale, middle, error = _coded(groups, scale, middle)
            better = error < least
            least = torch.where(better, error, least)
            found = (code, scale, middle)
            best = [torch.where(better, new, old) for new, old in zip(found, best, strict=True)]
            if not is_last:
                scale, middle = _refined(groups, code, scale)
    return best[0], best[1], best[2]


def _coded(groups: Tensor, scale: Tensor, middle: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nearest codes by scale and middle as they are stored, and the squared error of each group."""
    scale, middle = scale.bfloat16().float(), middle.bfloat16().float()
    scale = torch.where(scale == 0, torch.full_like(scale, 2.0**-40), scale)
    code = ((groups - middle) / scale + 8).round_().clamp_(0, 15)
    error = ((code - 8) * scale + middle - groups).square_().sum(-1, keepdim=True)
    return code, scale, middle, error


def _refined(groups: Tensor, code: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The straight line through (code, weight) of each group."""
    mean_code, mean = code.mean(-1, keepdim=True), groups.mean(-1, keepdim=True)
    off = code - mean_code
    spread = off.square().sum(-1, keepdim=True)
    slope = torch.where(spread > 0, (off * groups).sum(-1, keepdim=True) / spread.clamp(min=1e-6), scale)
    return slope, mean + (8 - mean_code) * slope


def _strips(weight: Tensor) -> Iterator[slice]:
    step = max(1, _STRIP_VALUES // weight.shape[1])
    return (slice(lo, min(lo + step, weight.shape[0])) for lo in range(0, weight.shape[0], step))
