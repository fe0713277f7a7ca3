"""A few numbers of Python's on a device, without waiting for it.

Knows numbers and devices. A copy from plain memory to a GPU waits until the device has done all that was asked before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def numbers_on(
    device: torch.device, numbers: Sequence[int] | Sequence[Sequence[int]], dtype: torch.dtype = torch.int64
) -> Tensor:
    """The numbers as a tensor on the device; on a GPU by way of pinned memory, in the order of its current stream."""
    here = torch.tensor(numbers, dtype=dtype)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here
