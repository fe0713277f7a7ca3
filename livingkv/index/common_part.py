"""What all vectors of a kind have in common, measured once on fixed rows and taken away from every vector.

Knows rows of numbers only. Sources: Arora, Liang and Ma, A Simple but Tough-to-Beat Baseline for Sentence Embeddings
(2017), which removes the strongest directions; Su et al., Whitening Sentence Representations (arXiv 2103.15316), which
weakens each by its strength. Half of that, the fourth root of the variance, measured better than all of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from livingkv.index.mixing import Floats, uniforms

_ITERATIONS = 40
_FLOOR = 1e-3  # of the mean variance, added to every direction's


class CommonPart(NamedTuple):
    """The mean [dim], orthonormal directions [k, dim] around it, and what share of each is left over [k], 0..1."""

    mean: Floats
    directions: Floats
    left_over: Floats

    @classmethod
    def strongest(cls, rows: Floats, k: int) -> CommonPart:
        """The `k` strongest directions of rows [n, dim], of which nothing is left over."""
        mean = rows.mean(axis=0)
        return cls(mean, strongest_directions(rows - mean, k), np.zeros(k, np.float32))

    @classmethod
    def half_whitening(cls, rows: Floats) -> CommonPart:
        """All directions of rows [n, dim], the stronger the less left over: (1 + variance / floor) ** -0.25."""
        mean = rows.mean(axis=0)
        _, lengths, directions = np.linalg.svd(rows - mean, full_matrices=False)
        variances = lengths**2 / len(rows)
        floor = max(_FLOOR * float(variances.sum()) / rows.shape[1], float(np.finfo(np.float32).tiny))
        return cls(mean, np.ascontiguousarray(directions), ((1 + variances / floor) ** -0.25).astype(np.float32))

    def removed(self, vectors: Floats) -> Floats:
        """The vectors [..., dim] without it."""
        centred = vectors - self.mean
        return np.asarray(centred - (centred @ self.directions.T * (1 - self.left_over)) @ self.directions, np.float32)


def strongest_directions(rows: Floats, k: int) -> Floats:
    """Orthonormal directions [k, dim] of the largest variance, by subspace iteration (a full SVD is slow when wide)."""
    width = rows.shape[1]
    basis = (uniforms(b"livingkv directions", width * k).reshape(width, k) - 0.5).astype(np.float32)
    for _ in range(_ITERATIONS):
        basis = np.linalg.qr(rows.T @ (rows @ basis))[0]
    return np.ascontiguousarray(basis.T)


def unit(vectors: Floats) -> Floats:
    """Rows [n, dim] of length 1; a row of about nothing becomes zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows: Floats = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 1e-12)
    return rows
