"""Rows on a CUDA device: copied from pinned memory beside computation, guarded by an event."""

from __future__ import annotations

import torch
from torch import Tensor

from livingkv.cuda_queue import CudaFence
from livingkv.device_queue import Fence


class CudaRows:
    """The RowDevice of a CUDA device: one copy on torch's current stream, which whoever uses the rows is on, too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copied(self, rows: Tensor) -> tuple[Tensor, Fence | None]:
        """See RowDevice."""
        found = rows.to(self._device, non_blocking=True)
        return found, CudaFence(torch.cuda.current_stream(self._device))
