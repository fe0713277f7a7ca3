"""From a row in RAM to tensors that can be computed with: views of the row on a CPU, a ring of buffers on a device.

The ring has events on both sides: a buffer is not written before the kernels that read it are done, and kernels do not
start before their buffer is written. What the device does in what order is behind `DeviceQueue`, so that the order
can be tested without a device. Knows rows, slots and queues; refuses to know routing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from livingkv.device_queue import DeviceQueue, Fence
from livingkv.experts.arena import Row, RowArena
from livingkv.experts.formats import TORCH_TYPES
from livingkv.experts.index import ExpertIndex, LayerIndex
from livingkv.experts.keys import ExpertKey
from livingkv.experts.layout import ALIGNMENT, Slot, rounded


class Stage(Protocol):
    """Hands out the tensors of READY rows."""

    @property
    def buffer_bytes(self) -> int:
        """Device memory that the stage takes."""

    def tensors(self, key: ExpertKey, row: Row) -> dict[str, Tensor]:
        """An expert's tensors by parameter. They may be computed with until `used`."""

    def used(self, key: ExpertKey) -> None:
        """Everything that computes with the expert's tensors was submitted."""


class HostStage:
    """A Stage for a CPU: the tensors are the row itself, nothing is copied."""

    buffer_bytes = 0

    def __init__(self, index: ExpertIndex) -> None:
        self._index = index

    def tensors(self, key: ExpertKey, row: Row) -> dict[str, Tensor]:
        """See Stage."""
        return row_views(self._index, key, row)

    def used(self, key: ExpertKey) -> None:
        """See Stage."""


class _Layout:
    """Where the slots of one kind of layer lie in a buffer: as bytes, and as what is computed with."""

    def __init__(self, slots: tuple[Slot, ...], memory: Tensor) -> None:
        self.targets: list[Tensor] = []
        self.views: dict[str, Tensor] = {}
        end = 0
        for slot in slots:
            target = memory[end : end + slot.n_bytes]
            self.targets.append(target)
            self.views[slot.tensor] = target.view(TORCH_TYPES[slot.dtype]).view(slot.shape)
            end = rounded(end + slot.n_bytes, ALIGNMENT)


@dataclass(slots=True)
class _Buffer:
    """layouts: one for each kind of layer. read: done when what computes with the last expert is."""

    layouts: list[_Layout]
    key: ExpertKey | None = None
    read: Fence | None = None


class DeviceStage:
    """A Stage for a device: `n_buffers` experts at a time, in turn."""

    def __init__(self, index: ExpertIndex, arena: RowArena, queue: DeviceQueue, n_buffers: int) -> None:
        assert n_buffers >= 1
        self._index, self._arena, self._queue = index, arena, queue
        self._n_bytes = max(_device_bytes(layer) for layer in index.layers)
        kinds = list(dict.fromkeys(layer.slots for layer in index.layers))
        self._kinds = [kinds.index(layer.slots) for layer in index.layers]
        memories = [queue.buffer(self._n_bytes) for _ in range(n_buffers)]
        # made once: views are not made for every expert of every token
        self._buffers = [_Buffer([_Layout(slots, memory) for slots in kinds]) for memory in memories]
        self._next = 0

    @property
    def buffer_bytes(self) -> int:
        """See Stage."""
        return self._n_bytes * len(self._buffers)

    def tensors(self, key: ExpertKey, row: Row) -> dict[str, Tensor]:
        """See Stage. The row is COPYING from here on, until the copies are over."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        assert buffer.key is None, "an expert is still computed with"
        if buffer.read is not None:
            self._queue.copy_after(buffer.read)
        layout = buffer.layouts[self._kinds[key.layer]]
        try:
            self._queue.copy(row_slots(self._index, key, row), layout.targets)
        finally:  # also of copies after which one failed
            copied = self._queue.copied()
            self._arena.copying(row, copied)
        self._queue.compute_after(copied)
        buffer.key = key
        return layout.views

    def used(self, key: ExpertKey) -> None:
        """See Stage."""
        buffer = next(one for one in self._buffers if one.key == key)
        buffer.key, buffer.read = None, self._queue.computed()


def row_slots(index: ExpertIndex, key: ExpertKey, row: Row) -> list[Tensor]:
    """The slots of a row as bytes, uint8 over its memory. Made once for each time that the row is read into."""
    if not row.slots:
        offsets = index.placement(key).slot_offsets
        row.slots.extend(
            torch.frombuffer(row.data[offset : offset + slot.n_bytes], dtype=torch.uint8)
            for slot, offset in zip(index.layers[key.layer].slots, offsets, strict=True)
        )
    return row.slots


def row_views(index: ExpertIndex, key: ExpertKey, row: Row) -> dict[str, Tensor]:
    """The slots of a row as tensors over its memory. Made once for each time that the row is read into."""
    if not row.views:
        for slot, raw in zip(index.layers[key.layer].slots, row_slots(index, key, row), strict=True):
            row.views[slot.tensor] = raw.view(TORCH_TYPES[slot.dtype]).view(slot.shape)
    return row.views


def _device_bytes(layer: LayerIndex) -> int:
    return sum(rounded(slot.n_bytes, ALIGNMENT) for slot in layer.slots)
