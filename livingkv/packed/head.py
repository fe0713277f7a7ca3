"""Logits of a large vocabulary in two goes: all of them from 4 bits, and the likeliest ones again from the weights.

Knows one matrix; knows no tokens. What is far from the likeliest has next to no share of the distribution, so that it
may be off by what 4 bits are off by.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import linear

from livingkv.packed.matrices import Matrix

NEAR_NATS = 8.0
"""As likely as e^-8 of the likeliest: some hundred tokens at most places. With 6 the distribution is further off than
that of 8 bits, with 10 there are three times as many (experiments/LOG.md)."""


@dataclass(frozen=True, eq=False)
class LikeliestAgain:
    """coarse: the weights in 4 bits. weight: themselves, [vocabulary, hidden]. near: how far below the largest product
    one is computed again."""

    coarse: Matrix
    weight: Tensor
    near: float = NEAR_NATS

    def product(self, x: Tensor) -> Tensor:
        """See Matrix."""
        logits = self.coarse.product(x)
        for row, hidden in zip(logits, x, strict=True):
            again = (row >= row.max() - self.near).nonzero()[:, 0]
            row[again] = linear(hidden, self.weight[again])
        return logits
