"""The dense channel: the nearest vectors by cosine, exact, over 8-bit codes in memory.

Knows vectors and their codes; knows no text and no embedder beyond its id. The search is exact, so it needs no training
and a rebuild is a read of the vector file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from livingkv.index import vector_file
from livingkv.index.background import EvenSample, Spread
from livingkv.index.device_parts import DeviceParts
from livingkv.index.flat_parts import FlatParts
from livingkv.index.hits import Found
from livingkv.index.mixing import Floats, block_size, mixed
from livingkv.index.vector_file import Batch

_FILE_NAME = re.compile(r"vectors-(\d{6})\.lkv")
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]


class DenseIndex:
    """The durable vectors of an index. One thread at a time; appends are durable on return, and so are removals.

    device: a torch device in whose memory they are searched; None searches them in RAM through faiss.
    """

    def __init__(self, folder: Path, embedder_id: str, dimension: int, device: str | None = None) -> None:
        self._folder = folder
        self.embedder_id = embedder_id
        self._dimension = dimension
        self._device = device
        self._limit = _component_limit(dimension)
        self.file_name = ""
        self.size_bytes = 0
        self._clear()

    def create_file(self, batch: Batch | None = None, *, after: str = "") -> None:
        """Start a new vector file with these rows; the one before it, or `after`, stays until `remove_other_files`."""
        name = f"vectors-{_number_of(self.file_name or after) + 1:06d}.lkv"
        self.size_bytes = vector_file.create(self._folder / name, self.embedder_id, self._dimension, batch)
        self.file_name = name
        self._clear()
        if batch is not None:
            self._take(batch)

    def load(self, file_name: str, size_bytes: int) -> None:
        """Hold exactly what the first `size_bytes` of the file say; reads only what is new. Raises IndexDamaged."""
        if (file_name, size_bytes) == (self.file_name, self.size_bytes):
            return
        grown = file_name == self.file_name and size_bytes > self.size_bytes > 0
        lo = self.size_bytes if grown else 0
        batches = list(vector_file.read(self._folder / file_name, self.embedder_id, self._dimension, lo, size_bytes))
        if not grown:
            self._clear()
        self._take(*batches)
        self.file_name, self.size_bytes = file_name, size_bytes

    def __len__(self) -> int:
        return len(self._sentence_ids)

    def append(self, sentence_ids: Sequence[int], session_ids: Sequence[int], codes: Codes) -> None:
        """Add rows of `vector_codes` [n, dim]; durable, but for others only when the state names the new size."""
        if len(sentence_ids):
            batch = Batch(np.asarray(sentence_ids, np.int64), np.asarray(session_ids, np.int64), codes)
            self.size_bytes = vector_file.append(self._folder / self.file_name, self.size_bytes, batch)
            self._take(batch)

    def remove(self, sentence_ids: Sequence[int], session_ids: Sequence[int]) -> None:
        """Drop rows by sentence or session, by writing a new file without them."""
        gone = np.isin(self._sentence_ids, np.asarray(sentence_ids, np.int64))
        gone |= np.isin(self._session_ids, np.asarray(session_ids, np.int64))
        if gone.any():
            kept = ~gone
            codes = self._flat.codes()[kept]
            self.create_file(Batch(self._sentence_ids[kept], self._session_ids[kept], codes))

    def batch(self) -> Batch:
        """All rows, in a copy."""
        return Batch(self._sentence_ids.copy(), self._session_ids.copy(), self._flat.codes().copy())

    def remove_other_files(self) -> None:
        """Delete every vector file but the current one. Call it when the state names the current one."""
        for path in self._folder.iterdir():
            if _FILE_NAME.fullmatch(path.name) and path.name != self.file_name:
                path.unlink(missing_ok=True)

    def search(self, vector: Floats, *, limit: int, session_ids: frozenset[int] | None) -> list[Found]:
        """The best `limit` sentences by cosine with a unit vector [dim], of these sessions only."""
        if not len(self) or not vector.any():
            return []
        allowed = None
        if session_ids is not None:
            allowed = np.isin(self._session_ids, np.fromiter(session_ids, np.int64, len(session_ids)))
            if not allowed.any():
                return []
        scores, rows = self._flat.search(self._steps(vector), limit, allowed)
        return [
            Found(int(self._sentence_ids[row]), int(self._session_ids[row]), float(score) * self._scale)
            for score, row in zip(scores, rows, strict=True)
        ]

    def spread(self, vector: Floats) -> Spread:
        """Of the cosines of a unit vector [dim] with all sentences, measured on some hundreds of them."""
        return Spread.of(self._sample.products(self._steps(vector)) * np.float32(self._scale), len(self))

    @property
    def _scale(self) -> float:
        return (self._limit / 127) ** 2

    def _steps(self, vector: Floats) -> Floats:
        steps: Floats = vector_codes(vector[None])[0].astype(np.float32) - 128  # [dim]
        return steps

    def _clear(self) -> None:
        self._sentence_ids: Ints = np.zeros(0, np.int64)
        self._session_ids: Ints = np.zeros(0, np.int64)
        self._flat = FlatParts(self._dimension) if self._device is None else DeviceParts(self._dimension, self._device)
        self._sample = EvenSample(self._dimension)

    def _take(self, *batches: Batch) -> None:
        self._sentence_ids = np.concatenate((self._sentence_ids, *(batch.sentence_ids for batch in batches)))
        self._session_ids = np.concatenate((self._session_ids, *(batch.session_ids for batch in batches)))
        for batch in batches:
            self._flat.add(batch.codes)
            self._sample.add(batch.codes)


def vector_codes(vectors: Floats) -> Codes:
    """Unit vectors [n, dim] as FORMAT.md stores them [n, dim]; n is 1 or more."""
    steps = np.rint(mixed(vectors) * np.float32(127 / _component_limit(vectors.shape[1]))).clip(-127, 127)
    codes: Codes = (steps + 128).astype(np.uint8)
    return codes


def _component_limit(dimension: int) -> float:
    """The largest component that a code can hold; FORMAT.md says why."""
    return min(1.0, max(6 / math.sqrt(dimension), 1 / math.sqrt(block_size(dimension))))


def _number_of(file_name: str) -> int:
    match = _FILE_NAME.fullmatch(file_name)
    return int(match[1]) if match else 0
