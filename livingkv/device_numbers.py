"""A few numbers made on the CPU, on a device, without waiting for it.

Knows numbers and devices. A copy from plain memory to a GPU waits until the device has done all that was asked before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def numbers_on(
    device: torch.device, numbers: Sequence[int] | Sequence[Sequence[int]], dtype: torch.dtype = torch.int64
) -> Tensor:
    """The numbers as a tensor on the device. See `sent`."""
    return sent(torch.tensor(numbers, dtype=dtype), device)


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Values made on the CPU on a device; on a GPU by way of pinned memory, in the order of its current stream there.

    Does not wait for the device: torch keeps the pinned memory in between until the copy is over.
    """
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
