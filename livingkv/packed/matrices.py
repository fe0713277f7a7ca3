"""Matrices that a few rows are multiplied with: 16 bits, 8 bits with a scale for each output, 4 bits with a scale and a
middle for each 32 inputs.

Knows PyTorch's packed products on a CPU; knows no network. `values` of the codes is what a product amounts to: the
reference of the kernels, in the tests and in `kernel_refusal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

GROUP = 32
"""Inputs that share a scale in 4 bits. Larger groups are no quicker (experiments/031_cpu_decode)."""

_TOLERANCE = 0.02
"""A kernel may differ from its reference by this share of the length: both round to bf16 once or twice."""

Bits = Literal["int8", "int4"]
BITS: tuple[Bits, ...] = ("int8", "int4")


class Matrix(Protocol):
    """[outputs, inputs], ready to be multiplied with."""

    def product(self, x: Tensor) -> Tensor:
        """x [rows, inputs] in bf16, contiguous; [rows, outputs] in bf16."""
        ...


@dataclass(frozen=True, eq=False)
class PlainMatrix:
    """Weights [outputs, inputs] as they are."""

    weight: Tensor

    def product(self, x: Tensor) -> Tensor:
        """See Matrix."""
        return linear(x, self.weight)


@dataclass(frozen=True, eq=False)
class Int8Matrix:
    """codes int8 [outputs, inputs], scales bf16 [outputs]."""

    codes: Tensor
    scales: Tensor

    def product(self, x: Tensor) -> Tensor:
        """See Matrix."""
        out: Tensor = torch.ops.aten._weight_int8pack_mm(x, self.codes, self.scales)
        return out

    def values(self) -> Tensor:
        """What the codes mean, fp32 [outputs, inputs]."""
        return self.codes.float() * self.scales.float()[:, None]


@dataclass(frozen=True, eq=False)
class Int4Codes:
    """codes uint8 0..15 [outputs, inputs]; scales and middles bf16 [outputs, inputs / GROUP]. A weight is its group's
    middle plus (code - 8) scales."""

    codes: Tensor
    scales: Tensor
    middles: Tensor

    def values(self) -> Tensor:
        """What the codes mean, fp32 [outputs, inputs]."""
        groups = self.codes.float().view(self.codes.shape[0], -1, GROUP) - 8.0
        values: Tensor = groups * self.scales.float()[..., None] + self.middles.float()[..., None]
        return values.flatten(1)

    def matrix(self) -> Int4Matrix:
        """Laid out for this machine's kernel."""
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(self.codes.int(), 2)
        table = torch.stack([self.scales.t(), self.middles.t()], -1).contiguous()
        return Int4Matrix(packed, table)


@dataclass(frozen=True, eq=False)
class Int4Matrix:
    """packed: codes in an order that depends on the machine. table: bf16 [inputs / GROUP, outputs, 2], scale and
    middle."""

    packed: Tensor
    table: Tensor

    def product(self, x: Tensor) -> Tensor:
        """See Matrix."""
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, GROUP, self.table)
        return out


def fits(weight: Tensor) -> bool:
    """Whether the kernels take a matrix of this shape."""
    return weight.shape[0] % 16 == 0 and weight.shape[1] % GROUP == 0


def kernel_refusal(bits: Bits) -> str | None:
    """Why this machine and this PyTorch cannot multiply by such matrices; None if they can, and compute what the
    reference does for 1, 3 and 8 rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 256, generator=generator).bfloat16()
    codes = torch.randint(0, 16, (128, 256), generator=generator, dtype=torch.uint8)
    scales = torch.rand(128, 256 // GROUP, generator=generator).bfloat16()
    try:
        matrix: Int8Matrix | Int4Matrix
        if bits == "int8":
            matrix = Int8Matrix(codes.char() - 8, scales[:, 0].contiguous())
            values = matrix.values()
        else:
            coded = Int4Codes(codes, scales, scales.flip(0))
            matrix, values = coded.matrix(), coded.values()
        for n_rows in (1, 3, 8):
            rows = x[:n_rows].contiguous()
            expected, found = rows.float() @ values.t(), matrix.product(rows).float()
            if not (found - expected).norm() <= _TOLERANCE * expected.norm():
                return f"its {bits} product of {n_rows} rows is not what it should be"
    except (RuntimeError, AttributeError) as error:  # AttributeError: this PyTorch has no such operator
        return f"PyTorch {torch.__version__} has no {bits} product here ({str(error).splitlines()[0][:120]})"
    return None
