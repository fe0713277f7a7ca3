"""How fast memory is read and matrices are multiplied here, by the processor and by a device.

A yardstick is what nothing exceeds: each figure is the best of several runs, and of several ways to read memory.
Knows torch; knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

_MOST_READ_BYTES = 1 << 29
_DEVICE_BYTES = 1 << 30
_COPY_BYTES = 1 << 28


def read_rate(n_bytes: int, seconds: float, device: torch.device) -> float:
    """Bytes of memory that are read each second: a buffer of `n_bytes`, larger than caches, is summed, and multiplied
    with a vector. Raises RuntimeError where there is no room for it."""
    rows = n_bytes // (4 * 4096)
    matrix = torch.ones(rows, 4096, device=device)
    vector = torch.ones(4096, device=device)
    half = matrix.view(torch.bfloat16)
    half_vector = torch.ones(half.shape[1], dtype=torch.bfloat16, device=device)
    ways: list[Callable[[], Tensor]] = [matrix.sum, lambda: matrix @ vector, lambda: half @ half_vector]
    return max(rows * 4 * 4096 / _best(way, seconds / len(ways), device) for way in ways)


def matrix_rate(size: int, dtype: torch.dtype, seconds: float, device: torch.device) -> float:
    """Floating point operations each second of square matrices of `size`. RuntimeError where it fails."""
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / _best(lambda: left @ right, seconds, device)


def copy_rate(seconds: float, device: torch.device) -> float:
    """Bytes that are copied each second from pinned memory to the device. Raises RuntimeError."""
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    return _COPY_BYTES / _best(lambda: target.copy_(source, non_blocking=True), seconds, device)


def buffer_bytes(free_bytes: int) -> int:
    """How large a buffer may be that is read."""
    return max(1 << 24, min(_MOST_READ_BYTES, free_bytes // 8))


def device_buffer_bytes(device: torch.device) -> int:
    """The same on the device."""
    return max(1 << 24, min(_DEVICE_BYTES, torch.cuda.mem_get_info(device)[0] // 4))


def _best(work: Callable[[], Tensor], seconds: float, device: torch.device) -> float:
    """The shortest time of one run; at least three, one more before that does not count."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work()
    wait()
    best, began, n_runs = float("inf"), perf_counter(), 0
    while n_runs < 3 or perf_counter() - began < seconds:
        start = perf_counter()
        work()
        wait()
        best, n_runs = min(best, perf_counter() - start), n_runs + 1
    return best
