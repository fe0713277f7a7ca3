"""A small embedder for tests: hashed words, so that equal words mean equal directions. Needs no model."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class WordEmbedder:
    """Each word is a fixed random direction; a text is the sum of its words, of length 1."""

    def __init__(self, name: str = "words", dimension: int = 64) -> None:
        self.id = name
        self.dimension = dimension

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See Embedder."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                seed = zlib.crc32(word.strip(".,?!:").encode())
                vectors[row] += np.random.default_rng(seed).standard_normal(self.dimension)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: npt.NDArray[np.float32] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
        return unit
