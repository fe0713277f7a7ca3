"""From sentences to vectors: the protocol, and the embedder that needs nothing but the model's own token embeddings.

Knows numpy and an `encode` function; loads no model. `livingkv.index.minilm` is the other implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from livingkv.index.common_part import CommonPart, unit
from livingkv.index.mixing import Floats, shortened, uniforms

_RARITY = 1e-5  # a token of this frequency weighs half as much as a very rare one
_ZIPF_OFFSET = 100
_COMMON_TOKENS = 3000
_SAMPLE_SENTENCES, _SAMPLE_TOKENS = 2048, 12
_COMMON_DIRECTIONS = 3
MAX_DIMENSION = 896
"""A longer vector of a model is projected to so many components: nearly the same cosines, less to keep."""


class Embedder(Protocol):
    """Turns texts into vectors whose dot product says how alike the texts are.

    `id` changes whenever the vectors would; an index holds vectors of one id only.
    """

    @property
    def id(self) -> str:
        """A name for these vectors, stable over processes and machines."""

    @property
    def dimension(self) -> int:
        """Components of a vector."""

    def embed(self, texts: Sequence[str]) -> Floats:
        """Vectors of length 1, or all zeros for a text without content. float32 [n, dimension]."""


class Rows(Protocol):
    """A matrix of which rows are taken: an array, or one that lies elsewhere."""

    @property
    def ndim(self) -> int:
        """2."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, ids: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        """Those rows, [n, columns]."""


class TokenEmbedder:
    """Weighted means of a model's input embeddings, with what all sentences have in common taken away.

    matrix: the input embeddings [vocabulary, hidden] as float32, float16 or, for bfloat16, its bits as uint16; may be
        memory-mapped, for only the rows that are needed are read.
    encode: token ids of a text, without special tokens.
    name: names model and tokenizer (their digests); goes into `id`.

    Weights and common directions follow Arora, Liang and Ma, A Simple but Tough-to-Beat Baseline for Sentence
    Embeddings (2017). Frequencies come from the token ids: byte-pair merges are numbered by frequency, so the id is a
    rank and Zipf's law does the rest. The common directions are those of sentences drawn at random from that law. Both
    follow from the model alone, so that vectors never depend on what was embedded before.
    """

    def __init__(self, matrix: Rows, encode: Callable[[str], Sequence[int]], *, name: str) -> None:
        if matrix.ndim != 2 or matrix.dtype not in (np.dtype("f4"), np.dtype("f2"), np.dtype("u2")):
            raise ValueError(
                f"the matrix must be [vocabulary, hidden] of f4, f2 or u2, not {matrix.shape} {matrix.dtype}"
            )
        self._matrix = matrix
        self._encode = encode
        self.dimension = min(matrix.shape[1], MAX_DIMENSION)
        self.id = f"token-embeddings-1:{name}"
        frequencies = 1 / (np.arange(len(matrix)) + 1 + _ZIPF_OFFSET)
        frequencies /= frequencies.sum()
        self._weights = (_RARITY / (_RARITY + frequencies)).astype(np.float32)  # [vocabulary]
        self._common = self._common_part(frequencies[:_COMMON_TOKENS])

    def embed(self, texts: Sequence[str]) -> Floats:
        """See Embedder. Takes some 0.1 ms a sentence."""
        vectors = np.zeros((len(texts), self._matrix.shape[1]), np.float32)
        for row, text in enumerate(texts):
            ids = np.asarray(self._encode(" " + text.strip().lower()), np.int64)
            ids = ids[(ids >= 0) & (ids < len(self._matrix))]
            if len(ids):
                vectors[row] = self._common.removed(self._weighted_mean(ids))
        return unit(shortened(vectors, self.dimension))

    def _common_part(self, frequencies: npt.NDArray[np.float64]) -> CommonPart:
        """The mean and the strongest directions [k, hidden] of random sentences of common tokens."""
        drawn = uniforms(b"livingkv sentences", _SAMPLE_SENTENCES * _SAMPLE_TOKENS)
        shares = np.cumsum(frequencies / frequencies.sum())
        ids = np.minimum(np.searchsorted(shares, drawn), len(frequencies) - 1)
        rows, weights = self._rows(np.arange(len(frequencies))), self._weights[: len(frequencies)]
        counts = np.zeros((_SAMPLE_SENTENCES, len(frequencies)), np.float32)
        np.add.at(counts, (np.repeat(np.arange(_SAMPLE_SENTENCES), _SAMPLE_TOKENS), ids), 1)
        counts *= weights
        sentences = (counts / counts.sum(axis=1, keepdims=True)) @ rows  # [sentences, hidden]
        return CommonPart.strongest(sentences.astype(np.float32, copy=False), _COMMON_DIRECTIONS)

    def _weighted_mean(self, ids: npt.NDArray[np.int64]) -> Floats:
        weights = self._weights[ids]
        return np.asarray(weights @ self._rows(ids) / weights.sum(), np.float32)

    def _rows(self, ids: npt.NDArray[np.int64]) -> Floats:
        rows = self._matrix[ids]  # [n, hidden]
        if rows.dtype == np.uint16:
            return np.asarray((rows.astype(np.uint32) << 16).view(np.float32))
        return rows.astype(np.float32)
