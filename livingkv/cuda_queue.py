"""The queues of a CUDA device: torch's current stream computes, a stream of its own copies.

Nothing here waits for the device, but for Fence.wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from livingkv.device_queue import Fence


class CudaFence:
    """A Fence made of a CUDA event."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def is_done(self) -> bool:
        """See Fence."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """See Fence."""
        self.event.synchronize()


class CudaQueue:
    """A DeviceQueue of one device. Copies run beside computation where the rows are pinned."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def buffer(self, n_bytes: int) -> Tensor:
        """See DeviceQueue."""
        memory = torch.empty(n_bytes, dtype=torch.uint8, device=self._device)
        memory.record_stream(self._copies)  # who gets that memory next waits for copies into it
        self._copies.wait_stream(torch.cuda.current_stream(self._device))  # who had that memory before may still use it
        return memory

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """See DeviceQueue."""
        with torch.cuda.stream(self._copies):
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)

    def copied(self) -> Fence:
        """See DeviceQueue."""
        return CudaFence(self._copies)

    def computed(self) -> Fence:
        """See DeviceQueue."""
        return CudaFence(torch.cuda.current_stream(self._device))

    def copy_after(self, fence: Fence) -> None:
        """See DeviceQueue."""
        assert isinstance(fence, CudaFence)
        self._copies.wait_event(fence.event)

    def compute_after(self, fence: Fence) -> None:
        """See DeviceQueue."""
        assert isinstance(fence, CudaFence)
        torch.cuda.current_stream(self._device).wait_event(fence.event)
