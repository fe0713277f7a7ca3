"""What cosines a question has with sentences at large: the scale on which a hit of the dense channel is judged.

Knows codes and cosines; knows no text. An embedder's cosines mean nothing by themselves: one spreads unrelated
sentences over 0.1, another over 0.02 around 0.9, and both differ from question to question. How far a hit stands above
the store's own sentences, in standard deviations, means nearly the same for all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from livingkv.index.mixing import Floats

LEAST_SENTENCES = 64
"""Of fewer, a spread says nothing."""

_KEPT_ROWS = 512


class Spread(NamedTuple):
    """Mean and variance of a question's cosines with `n` sentences."""

    n: int
    mean: float
    variance: float

    @classmethod
    def of(cls, cosines: Floats, n: int) -> Spread:
        """Of a sample [rows] of n sentences; of an empty one, nothing is known."""
        return cls(n, float(cosines.mean()), float(cosines.var())) if len(cosines) else cls(0, 0.0, 0.0)

    def joined(self, other: Spread) -> Spread:
        """That of both sets of sentences together."""
        n = self.n + other.n
        if n == 0:
            return self
        share = self.n / n
        mean = share * self.mean + (1 - share) * other.mean
        apart = share * (1 - share) * (self.mean - other.mean) ** 2
        return Spread(n, mean, share * self.variance + (1 - share) * other.variance + apart)

    def salience(self, cosine: float) -> float | None:
        """How many standard deviations a cosine stands above the mean; None where too few sentences, or all alike,
        tell nothing."""
        if self.n < LEAST_SENTENCES or self.variance <= 1e-12:
            return None
        return (cosine - self.mean) / math.sqrt(self.variance)


class EvenSample:
    """Some of the rows of codes [dimension] that were added, evenly spaced over all of them."""

    def __init__(self, dimension: int) -> None:
        self._rows = np.zeros((0, dimension), np.uint8)
        self._stride = 1
        self.n_seen = 0

    def add(self, codes: npt.NDArray[np.uint8]) -> None:
        """Rows [n, dimension] in their order."""
        self._rows = np.concatenate((self._rows, codes[-self.n_seen % self._stride :: self._stride]))
        self.n_seen += len(codes)
        while len(self._rows) > 2 * _KEPT_ROWS:
            self._rows = self._rows[::2].copy()
            self._stride *= 2

    def products(self, query: Floats) -> Floats:
        """Dot products [rows] with a query [dimension]; a code is a component plus 128."""
        rows = self._rows.astype(np.float32) - 128
        return np.asarray(np.einsum("ij,j->i", rows, query), np.float32)  # BLAS would wake threads and wait for them
