"""Pinning memory, so that a CUDA device copies from it at full speed.

The only module of the tiers that knows torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

LOG = logging.getLogger("livingkv.tiers")

_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of the process, not only for the current one."""


def pin_for_cuda(address: int, n_bytes: int) -> Callable[[], None]:
    """A Register: pins memory through cudaHostRegister; what it answers unpins it. All of it takes RAM from now on.

    Where the system refuses (a limit on locked memory) it stays as it is, and the log says so once: copies are slower
    then, and not wrong.
    """
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = runtime.cudaHostRegister(address, n_bytes, _PORTABLE)
    if int(error) != 0:
        reason = runtime.cudaGetErrorString(error)
        LOG.warning("%.2f GB of RAM cannot be pinned (%s): copies to the device are slower", n_bytes / 1e9, reason)
        _forget_error()
        return lambda: None

    def unpin() -> None:
        torch.cuda.synchronize()  # no copy from it may be under way
        if int(runtime.cudaHostUnregister(address)) != 0:
            _forget_error()

    return unpin


def _forget_error() -> None:
    """CUDA keeps the last error until it is asked for; torch asks after its next kernel, and would raise it there."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda")
