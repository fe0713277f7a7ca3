"""Four-bit floating point, E2M1: what the codes mean, and how two of them lie in a byte.

A code is a sign, two bits of exponent with bias 1 and one bit of mantissa (OCP Microscaling Formats v1.0, section
5.3.3): +-0, 0.5, 1, 1.5, 2, 3, 4, 6, no infinity, no NaN. Every format here keeps the value of the even index in the
low half of a byte. Knows codes and bytes; refuses to know scales.
"""

from __future__ import annotations

import torch
from torch import Tensor


def e2m1(codes: Tensor) -> Tensor:
    """The values of codes 0 to 15 in fp32, computed as the format defines them. codes: any shape, an integer type."""
    exponent, mantissa = (codes >> 1) & 3, (codes & 1).float()
    # with exponent 0 there is no hidden bit, and the exponent is that of 1
    size = torch.where(exponent == 0, mantissa / 2, (1 + mantissa / 2) * (1 << (exponent - 1).clamp(0)).float())
    return torch.where(codes & 8 != 0, -size, size)


def unpacked(packed: Tensor) -> Tensor:
    """Values of packed codes: uint8 [..., n] to fp32 [..., 2 n], the low half of a byte first."""
    bytes_ = packed.view(torch.uint8).to(torch.int32)
    return e2m1(torch.stack((bytes_ & 15, bytes_ >> 4), dim=-1)).flatten(-2)
