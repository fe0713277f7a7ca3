"""The queues of a CUDA device: torch's current stream computes, a stream of its own copies."""

from __future__ import annotations

import torch
from torch import Tensor

from livingkv.experts.arena import Fence


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
        return torch.empty(n_bytes, dtype=torch.uint8, device=self._device)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """See DeviceQueue."""
        with torch.cuda.stream(self._copies):
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
