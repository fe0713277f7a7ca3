"""What all vectors of a kind have in common, measured once on fixed rows and taken away from every vector.

Knows rows of numbers only. Source: Arora, Liang and Ma, A Simple but Tough-to-Beat Baseline for Sentence Embeddings
(2017); Mu and Viswanath, All-but-the-Top (2018).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from livingkv.index.mixing import Floats, uniforms

_ITERATIONS = 40


class CommonPart(NamedTuple):
    """The mean [dim] and the strongest directions [k, dim], orthonormal, around it."""

    mean: Floats
    directions: Floats

    @classmethod
    def of(cls, rows: Floats, k: int) -> CommonPart:
        """Measured on rows [n, dim]."""
        mean = rows.mean(axis=0)
        return cls(mean, strongest_directions(rows - mean, k))

    def removed(self, vectors: Floats) -> Floats:
        """The vectors [..., dim] without it."""
        centred = vectors - self.mean
        return np.asarray(centred - (centred @ self.directions.T) @ self.directions, np.float32)


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
