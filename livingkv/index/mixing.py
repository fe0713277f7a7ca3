"""Orthogonal mixing of vector components, the same on every machine and in every version.

Knows signs drawn from a hash and the fast Hadamard transform, and nothing of what the vectors mean. Used to make 8-bit
codes safe (no component stands out) and to shorten vectors (Ailon and Chazelle, The Fast Johnson-Lindenstrauss
Transform, 2009).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def block_size(dimension: int) -> int:
    """The largest power of two that divides the dimension: that many components are mixed with each other."""
    return dimension & -dimension


def mixed(vectors: Floats) -> Floats:
    """The vectors turned by one fixed orthogonal map of their dimension. [n, dim] to [n, dim]; lengths stay."""
    n, dimension = vectors.shape
    block = block_size(dimension)
    blocks = (vectors * _signs(dimension)).reshape(-1, block)  # [n * dim / block, block]
    return _hadamard(blocks).reshape(n, dimension)


def shortened(vectors: Floats, dimension: int) -> Floats:
    """The vectors projected so that angles are about kept. [n, wide] to [n, dimension]; lengths about stay."""
    n, wide = vectors.shape
    if wide <= dimension:
        return vectors
    padded = np.zeros((n, 1 << (wide - 1).bit_length()), np.float32)
    padded[:, :wide] = vectors * _signs(wide)
    scale = np.float32(np.sqrt(padded.shape[1] / dimension))
    return np.ascontiguousarray(_hadamard(padded)[:, :dimension]) * scale


def uniforms(seed: bytes, n: int) -> npt.NDArray[np.float64]:
    """n numbers in [0, 1) that follow from the seed alone."""
    return np.frombuffer(hashlib.shake_256(seed).digest(4 * n), "<u4") / 2.0**32


def _signs(dimension: int) -> Floats:
    return np.where(uniforms(b"livingkv signs", dimension) < 0.5, np.float32(-1), np.float32(1))


def _hadamard(rows: Floats) -> Floats:
    """The orthonormal Walsh-Hadamard transform of each row; the width is a power of two."""
    n, width = rows.shape
    half = 1
    while half < width:
        pairs = rows.reshape(n, -1, 2, half)
        rows = np.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), axis=2)
        half *= 2
    return rows.reshape(n, width) * np.float32(width**-0.5)
