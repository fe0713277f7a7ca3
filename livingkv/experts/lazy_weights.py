"""The weights that are not experts', each read from its file when transformers asks for it.

What safetensors' own slices do, without mapping the whole file: a map of a shard of 100 GB can fail for want of address
space, and it would not notice a file that changed. Knows files and torch types; refuses to know what a weight is for.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import UnsupportedModel
from livingkv.experts.checkpoint import Checkpoint
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.formats import TORCH_TYPES
from livingkv.experts.layout import ALIGNMENT
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


def lazy_weights(checkpoint: Checkpoint, files: CheckpointFiles, without: Container[str]) -> dict[str, LazyTensor]:
    """All tensors of a checkpoint but those. Raises UnsupportedModel for a type that torch cannot view."""
    found = {}
    for name, (file, stored) in checkpoint.tensors.items():
        if name in without:
            continue
        if stored.dtype not in TORCH_TYPES:
            raise UnsupportedModel(f"{name}: its type {stored.dtype} cannot be read outside of experts")
        found[name] = LazyTensor(files, file, stored)
    return found
