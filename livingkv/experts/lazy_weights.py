"""The weights that are not experts', each read from its file when transformers asks for it.

What safetensors' own slices do, without mapping the whole file: a map of a shard of 100 GB can fail for want of address
space, and it would not notice a file that changed. Knows files and torch types; refuses to know what a weight is for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import UnsupportedModel
from livingkv.experts.checkpoint import Checkpoint
from livingkv.experts.codings import Coding, Stored
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.formats import TORCH_TYPES
from livingkv.experts.layout import ALIGNMENT
from livingkv.experts.quantization import StoredAs
from livingkv.experts.safetensors_header import StoredTensor


class LazyTensor:
    """A stored tensor that is read whenever it is indexed. Threads may share it."""

    def __init__(self, files: CheckpointFiles, file: int, stored: StoredTensor) -> None:
        self._files, self._file, self._stored = files, file, stored

    def get_shape(self) -> list[int]:
        """As safetensors' slices answer it."""
        return list(self._stored.shape)

    def get_dtype(self) -> str:
        """As safetensors' slices answer it."""
        return self._stored.dtype

    def __getitem__(self, index: Any) -> Tensor:
        """Read all of it and take that part. Raises ExpertReadError where it cannot be read."""
        stored = self._stored
        room = torch.empty(stored.n_bytes + ALIGNMENT, dtype=torch.uint8)
        # as far from an aligned address as in the file, which is where a mapped file has it: see docs/decisions/0020
        start = (stored.offset - room.data_ptr()) % ALIGNMENT
        raw = room[start : start + stored.n_bytes]
        if stored.n_bytes:
            self._files.read(self._file, raw.numpy().data, stored.offset, stored.n_bytes)
        found: Tensor = raw.view(TORCH_TYPES[stored.dtype]).view(stored.shape)[index]
        return found


class LazyMatrix:
    """A matrix that is stored as codes and scales, decoded whenever it is indexed, in fp32. Threads may share it."""

    def __init__(self, coding: Coding, shape: tuple[int, ...], parts: Mapping[str, LazyTensor]) -> None:
        self._coding, self._shape, self._parts = coding, shape, parts

    def get_shape(self) -> list[int]:
        """As safetensors' slices answer it."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """As safetensors' slices answer it."""
        return "F32"

    def __getitem__(self, index: Any) -> Tensor:
        """Read and decode all of it and take that part. Raises ExpertReadError where it cannot be read."""
        found: Tensor = self._coding.values({role: part[...] for role, part in self._parts.items()})[index]
        return found


def lazy_weights(
    checkpoint: Checkpoint, files: CheckpointFiles, names: Mapping[str, StoredAs], codings: tuple[Coding, ...]
) -> dict[str, LazyTensor | LazyMatrix]:
    """The tensors of those names, which are sorted by matrix. Raises UnsupportedModel for what cannot be decoded."""
    matrices: defaultdict[str, dict[str, LazyTensor]] = defaultdict(dict)
    for on_disk, (name, role) in names.items():
        file, stored = checkpoint.tensors[on_disk]
        if stored.dtype not in TORCH_TYPES:
            raise UnsupportedModel(f"{name}: its type {stored.dtype} cannot be read outside of experts")
        matrices[name][role] = LazyTensor(files, file, stored)
    return {
        name: parts[""] if "" in parts else _decoded(name, parts, codings) for name, parts in sorted(matrices.items())
    }


def _decoded(name: str, parts: dict[str, LazyTensor], codings: tuple[Coding, ...]) -> LazyMatrix:
    stored = {role: Stored(part.get_dtype(), tuple(part.get_shape())) for role, part in parts.items()}
    problems = []
    for coding in codings:
        dense = coding.dense(stored)
        if dense.problem is None:
            return LazyMatrix(coding, dense.shape, parts)
        problems.append(f"{coding.name}: {dense.problem}")
    raise UnsupportedModel(f"{name}: it is stored in a way that cannot be read ({'; '.join(problems)})")
