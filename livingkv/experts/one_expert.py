"""One expert read at leisure, part by part, without rows and placements: for comparisons, not for tokens.

Knows parts and open files; refuses to know sources.
"""

from __future__ import annotations

import torch
from torch import Tensor

from livingkv.experts.files import CheckpointFiles
from livingkv.experts.formats import TORCH_TYPES
from livingkv.experts.index import ExpertIndex
from livingkv.experts.keys import ExpertKey


def slot_bytes(index: ExpertIndex, key: ExpertKey, files: CheckpointFiles) -> dict[str, bytes]:
    """The bytes of an expert's slots by name. files: those of index.checkpoint, not direct. Raises ExpertReadError."""
    layer = index.layers[key.layer]
    found = {}
    for slot in layer.slots:
        parts = []
        for number in slot.parts:
            file, offset, n_bytes = index.part(key, layer.parts[number].name)
            part = bytearray(n_bytes)
            if n_bytes:
                files.read(file, memoryview(part), offset, n_bytes)
            parts.append(part)
        found[slot.tensor] = b"".join(parts)
    return found


def slot_tensors(index: ExpertIndex, key: ExpertKey, files: CheckpointFiles) -> dict[str, Tensor]:
    """The same as tensors, in memory of their own."""
    found = {}
    for slot, data in zip(index.layers[key.layer].slots, slot_bytes(index, key, files).values(), strict=True):
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found[slot.tensor] = raw.view(TORCH_TYPES[slot.dtype]).view(slot.shape)
    return found
