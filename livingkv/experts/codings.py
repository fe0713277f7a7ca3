"""Ways of storing a matrix as codes and scales: block-scaled FP8, MXFP4 and NVFP4, each as its format defines it.

These are the references: written for reading, in fp32, value by value what the definition says. What computes the same
faster has to prove it (`kernel_gate.py`). Knows tensors, types and shapes; refuses to know files and experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from livingkv.experts.fp4 import unpacked

CODES, SCALES, GLOBAL_SCALE, GLOBAL_DIVISOR = "codes", "scales", "global_scale", "global_divisor"
"""What a stored tensor can be to a matrix."""

_WIDE = ("F32", "BF16", "F16")
_E8M0_NAN = 255
_LEAST_BITS = 1 << 22


class Stored(NamedTuple):
    """Type, by safetensors' name, and shape of a stored tensor."""

    dtype: str
    shape: tuple[int, ...]


class Dense(NamedTuple):
    """What a coding says about stored tensors: the shape of the matrix, or why it is none of its own."""

    shape: tuple[int, ...]
    problem: str | None = None


class Coding(Protocol):
    """One way of storing a matrix."""

    @property
    def name(self) -> str:
        """What it is called in errors."""

    def dense(self, stored: Mapping[str, Stored]) -> Dense:
        """The shape of the matrix that tensors of those roles hold. The last two dimensions are (out, in)."""

    def values(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The matrix in fp32, in new memory. parts: by role, as `dense` allows them; not changed."""


def widened(codes: Tensor) -> Tensor:
    """Floating-point codes of one byte as fp32."""
    return codes.float()


@dataclass(frozen=True, slots=True)
class BlockFp8:
    """A Coding: E4M3 codes, and a scale for each block of 128 x 128 of them (DeepSeek-V3, `weight_scale_inv`).

    Blocks at the right and lower edge may be cut. Scales multiply; they are of any floating-point type, or E8M0.
    """

    block: int = 128
    decode: Callable[[Tensor], Tensor] = field(default=widened)
    name: str = "fp8 block"

    def dense(self, stored: Mapping[str, Stored]) -> Dense:
        """See Coding."""
        if stored.keys() != {CODES, SCALES}:
            return Dense((), f"it has {_words(stored)}")
        codes, scales = stored[CODES], stored[SCALES]
        if codes.dtype != "F8_E4M3" or len(codes.shape) != 2:
            return Dense((), f"codes are {_said(codes)}")
        grid = tuple(-(-size // self.block) for size in codes.shape)
        if scales.dtype not in (*_WIDE, "F8_E8M0") or scales.shape != grid:
            return Dense((), f"scales are {_said(scales)}, not {list(grid)}")
        return Dense(codes.shape)

    def values(self, parts: Mapping[str, Tensor]) -> Tensor:
        """See Coding."""
        codes, scales = parts[CODES], parts[SCALES]
        out, into = codes.shape
        rows = scales.float().repeat_interleave(self.block, dim=0)[:out]
        return self.decode(codes) * rows.repeat_interleave(self.block, dim=1)[:, :into]


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """A Coding: E2M1 codes, and a power of two (E8M0) for each 32 of them in a row.

    In blocks [out, in / 32, 16 bytes] with scales as bytes, as gpt_oss keeps it, or in rows [out, in / 2 bytes] with
    scales of type E8M0, as DeepSeek-V4 does. OCP Microscaling Formats v1.0: a scale of 255 is NaN.
    """

    decode: Callable[[Tensor], Tensor] = field(default=unpacked)
    name: str = "mxfp4"

    def dense(self, stored: Mapping[str, Stored]) -> Dense:
        """See Coding."""
        if stored.keys() != {CODES, SCALES}:
            return Dense((), f"it has {_words(stored)}")
        codes, scales = stored[CODES], stored[SCALES]
        if scales.dtype not in ("U8", "F8_E8M0") or len(scales.shape) != 2:
            return Dense((), f"scales are {_said(scales)}")
        out, groups = scales.shape
        if codes.dtype not in ("U8", "I8") or codes.shape not in ((out, groups, 16), (out, groups * 16)):
            return Dense((), f"codes are {_said(codes)} with {groups} scales in a row")
        return Dense((out, groups * 32))

    def values(self, parts: Mapping[str, Tensor]) -> Tensor:
        """See Coding."""
        powers = e8m0(parts[SCALES])
        out, groups = powers.shape
        values = self.decode(parts[CODES].reshape(out, groups, 16))
        return (values * powers.unsqueeze(-1)).view(out, groups * 32)


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """A Coding: E2M1 codes in rows, an E4M3 scale for each 16 of them, and one fp32 number for all.

    That number multiplies the scales (`weight_scale_2` of modelopt) or divides them (`weight_global_scale` of
    compressed-tensors); the scale that results is rounded to fp32 before it multiplies the value.
    """

    decode: Callable[[Tensor], Tensor] = field(default=unpacked)
    name: str = "nvfp4"

    def dense(self, stored: Mapping[str, Stored]) -> Dense:
        """See Coding."""
        if stored.keys() not in ({CODES, SCALES, GLOBAL_SCALE}, {CODES, SCALES, GLOBAL_DIVISOR}):
            return Dense((), f"it has {_words(stored)}")
        codes, scales = stored[CODES], stored[SCALES]
        whole = stored.get(GLOBAL_SCALE) or stored[GLOBAL_DIVISOR]
        if scales.dtype != "F8_E4M3" or len(scales.shape) != 2:
            return Dense((), f"scales are {_said(scales)}")
        out, groups = scales.shape
        if codes.dtype != "U8" or codes.shape != (out, groups * 8):
            return Dense((), f"codes are {_said(codes)} with {groups} scales in a row")
        if whole.dtype != "F32" or whole.shape not in ((), (1,)):
            return Dense((), f"the scale of all is {_said(whole)}")
        return Dense((out, groups * 16))

    def values(self, parts: Mapping[str, Tensor]) -> Tensor:
        """See Coding."""
        scales = parts[SCALES].float()
        scales = scales * parts[GLOBAL_SCALE] if GLOBAL_SCALE in parts else scales / parts[GLOBAL_DIVISOR]
        out, groups = scales.shape
        values = self.decode(parts[CODES]).view(out, groups, 16)
        return (values * scales.unsqueeze(-1)).view(out, groups * 16)


CODINGS: tuple[Coding, ...] = (BlockFp8(), Mxfp4(), Nvfp4())
"""All of them, in the order in which they are tried."""


def e8m0(scales: Tensor) -> Tensor:
    """Powers of two from their biased exponents, bytes or E8M0, in fp32. 255 is NaN."""
    exponents = scales.view(torch.uint8).to(torch.int32)
    # fp32 has the same bias, so that the byte is its exponent; 2**-127 alone is a subnormal number
    powers = torch.where(exponents == 0, _LEAST_BITS, exponents << 23).view(torch.float32)
    return powers.masked_fill(exponents == _E8M0_NAN, torch.nan)


def _words(stored: Mapping[str, Stored]) -> str:
    return ", ".join(sorted(stored))


def _said(stored: Stored) -> str:
    return f"{stored.dtype} {list(stored.shape)}"
