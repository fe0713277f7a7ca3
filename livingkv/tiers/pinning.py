"""Pinning memory, so that a CUDA device copies from it at full speed.

The only module of the tiers that knows torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def pin_for_cuda(address: int, n_bytes: int) -> Callable[[], None]:
    """A Register: pins memory through cudaHostRegister; what it answers unpins it. All of it takes RAM from now on.

    Where the system refuses (a limit on locked memory) it stays as it is: copies are slower then, and not wrong.
    """
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(address, n_bytes, 0)) != 0:
        return lambda: None

    def unpin() -> None:
        torch.cuda.synchronize()  # no copy from it may be under way
        runtime.cudaHostUnregister(address)

    return unpin
