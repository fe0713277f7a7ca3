"""What computes a matrix from codes faster than the reference is used only where it computes the same.

The gate compares on tensors of real layouts: those of an expert that was read, or codes of all kinds in shapes of a
layer. Knows codings; refuses to know how a kernel works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from livingkv.errors import UnsupportedModel
from livingkv.experts.codings import Coding, Dense, Stored

Kernel = Callable[[Mapping[str, Tensor]], Tensor]
"""Parts of a matrix by role to the matrix, in fp32, as Coding.values."""

Sample = Mapping[str, Tensor]


SUM_TOLERANCE = 2.0**-13
"""How far a sum of products may be off, as a share of the sum of their magnitudes; its rounding to the type of the
hidden states comes on top. Swapped halves of bytes are off by about 1 / sqrt(number of products) of it."""


class Product(Protocol):
    """The product of a few tokens with a matrix that is stored in pieces, one below the other."""

    @property
    def most_tokens(self) -> int:
        """It takes so many at a time."""

    def __call__(self, hidden: Tensor, pieces: Sequence[Sample]) -> Tensor:
        """hidden [tokens, in] times the transposed matrix: [tokens, out], in the type of `hidden`."""


class Comparison(NamedTuple):
    """What a kernel made of the samples. largest: the largest difference of two values, as a share of the larger."""

    n_values: int
    n_different: int
    largest: float


@dataclass(frozen=True, slots=True)
class Accelerated:
    """A Coding whose values come from a kernel that was accepted. Made by `accept_kernel` alone."""

    reference: Coding
    kernel: Kernel

    @property
    def name(self) -> str:
        """See Coding."""
        return self.reference.name

    def dense(self, stored: Mapping[str, Stored]) -> Dense:
        """See Coding."""
        return self.reference.dense(stored)

    def values(self, parts: Mapping[str, Tensor]) -> Tensor:
        """See Coding."""
        return self.kernel(parts)


def accept_kernel(coding: Coding, kernel: Kernel, samples: Iterable[Sample], *, tolerance: float = 0.0) -> Coding:
    """The coding with that kernel. Raises UnsupportedModel, with the numbers, where it computes anything else.

    samples: parts of matrices by role, at least one. tolerance: the largest difference that is allowed, as a share of
    the larger value; 0 is every bit. With more than 0 a network's answers are not those of transformers any more.
    """
    found = compared(coding, kernel, samples)
    if found.n_values == 0:
        raise UnsupportedModel(f"{coding.name}: a kernel without samples to compare it on is not used")
    if found.n_different and not found.largest <= tolerance:
        raise UnsupportedModel(
            f"{coding.name}: {found.n_different} of {found.n_values} values of the kernel differ from the reference, by"
            f" {found.largest:.2g} of the value at most, {tolerance:g} is allowed: it is not used"
        )
    return Accelerated(coding, kernel)


def accept_product(
    coding: Coding, product: Product, matrices: Iterable[Sequence[Sample]], dtype: torch.dtype
) -> Product:
    """The product itself. Raises UnsupportedModel, with the numbers, where it is off by more than SUM_TOLERANCE.

    matrices: real ones, each by its pieces, on the device that it is for; hidden states are random ones of `dtype`.
    """
    worst, n_compared = 0.0, 0
    for pieces in matrices:
        weight = torch.cat([coding.values(piece).to(dtype) for piece in pieces]).double()
        for n_tokens in sorted({1, 5, product.most_tokens}):
            drawn = torch.randn(n_tokens, weight.shape[1], generator=torch.Generator().manual_seed(n_tokens))
            hidden = drawn.to(dtype).to(weight.device)
            worst = max(worst, _excess(product(hidden, pieces), hidden.double(), weight))
            n_compared += 1
    if n_compared == 0:
        raise UnsupportedModel(f"{coding.name}: a product without matrices to compare it on is not used")
    if not worst <= SUM_TOLERANCE:
        raise UnsupportedModel(
            f"{coding.name}: the product without decoding is off by {worst:.2g} of the magnitudes that are added up, "
            f"{SUM_TOLERANCE:.2g} is allowed: it is not used"
        )
    return product


def _excess(found: Tensor, hidden: Tensor, weight: Tensor) -> float:
    """The largest error beyond rounding, as a share of the sum of magnitudes; infinite for what is no number."""
    exact, size = hidden @ weight.t(), hidden.abs() @ weight.abs().t()
    if found.shape != exact.shape:
        return float("inf")
    off = (found.double() - exact).abs() - torch.finfo(found.dtype).eps * exact.abs()
    share = (off / size.clamp(min=torch.finfo(found.dtype).tiny)).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return float(share.max())


def compared(coding: Coding, kernel: Kernel, samples: Iterable[Sample]) -> Comparison:
    """The kernel against the reference, value by value. NaN equals NaN; another shape or type is all different."""
    n_values = n_different = 0
    largest = 0.0
    for parts in samples:
        expected = coding.values(parts)
        found = kernel(parts)
        n_values += expected.numel()
        if found.shape != expected.shape or found.dtype != expected.dtype:
            n_different, largest = n_different + expected.numel(), float("inf")
            continue
        # as bits, so that -0.0 is not 0.0
        different = (found.view(torch.int32) != expected.view(torch.int32)) & ~(found.isnan() & expected.isnan())
        n_different += int(different.sum())
        largest = max([largest, *_shares(found[different].double(), expected[different].double())])
    return Comparison(n_values, n_different, largest)


def _shares(found: Tensor, expected: Tensor) -> list[float]:
    if not found.numel():
        return []
    share = (found - expected).abs() / torch.maximum(found.abs(), expected.abs()).clamp(min=1e-300)
    return [float(share.nan_to_num(nan=torch.inf).max())]
