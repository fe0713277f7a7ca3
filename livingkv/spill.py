"""KV on its way from the device to RAM: copies that nobody waits for until somebody needs the bytes.

Knows tensors and a device's queues; knows no codec, session or file. On a GPU a copy runs on a stream of its own into
pinned memory: it begins when what was computed before it is done, and what is computed after it does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from livingkv.cuda_queue import CudaQueue
from livingkv.device_queue import DeviceQueue, Fence


class HostCopy(Protocol):
    """A tensor that is or will be in RAM."""

    def wait(self) -> Tensor:
        """The tensor in RAM, once it is there; any thread may wait, more than once."""


class HostCopies(Protocol):
    """Brings tensors to RAM."""

    def start(self, source: Tensor) -> HostCopy:
        """Begin to copy `source`, contiguous and not written to afterwards; does not wait."""


@dataclass(frozen=True, slots=True, eq=False)
class Here:
    """A HostCopy of what was in RAM all the time."""

    tensor: Tensor

    def wait(self) -> Tensor:
        """See HostCopy."""
        return self.tensor


class HereAlready:
    """HostCopies of a CPU: nothing is copied."""

    def start(self, source: Tensor) -> Here:
        """See HostCopies."""
        return Here(source)


@dataclass(frozen=True, slots=True, eq=False)
class OnItsWay:
    """A HostCopy that a queue makes. Holds the source: its memory is not given to others before the copy is done."""

    source: Tensor
    target: Tensor
    copied: Fence

    def wait(self) -> Tensor:
        """See HostCopy."""
        self.copied.wait()
        return self.target


class QueuedCopies:
    """HostCopies of a device. pinned: the targets, from PyTorch's cache of pinned memory, which is used again."""

    def __init__(self, queue: DeviceQueue, *, pinned: bool = True) -> None:
        self._queue = queue
        self._pinned = pinned

    def start(self, source: Tensor) -> OnItsWay:
        """See HostCopies."""
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=self._pinned)
        self._queue.copy_after(self._queue.computed())
        self._queue.copy([source], [target])
        return OnItsWay(source, target, self._queue.copied())


def host_copies(device: torch.device) -> HostCopies:
    """The right ones for a device."""
    return QueuedCopies(CudaQueue(device)) if device.type == "cuda" else HereAlready()


@dataclass(frozen=True, slots=True, eq=False)
class Spill:
    """Sealed pages and the unsealed tail of a session, in RAM or on their way there."""

    sealed: Sequence[HostCopy]
    tail_header: bytes = b""
    tail_body: HostCopy | None = None

    def pages(self) -> tuple[memoryview, ...]:
        """The pages, in order; waits for them. Valid as long as they are held."""
        return tuple(memoryview(row) for copy in self.sealed for row in copy.wait().numpy())

    def tail(self) -> bytes:
        """The tail as it is stored; waits for it."""
        return b"" if self.tail_body is None else self.tail_header + self.tail_body.wait().numpy().tobytes()
