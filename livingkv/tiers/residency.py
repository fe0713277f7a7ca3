"""Which part of a file the kernel already holds in its page cache.

Knows mincore(2); a range counts as not held where the system cannot tell. Reads nothing and changes nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache

import numpy as np

from livingkv.tiers.tier import BLOCK_BYTES


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def resident_fraction(descriptor: int, lo: int, hi: int) -> float:
    """How much of bytes [lo, hi) of a readable file is in the page cache, 0 to 1. `lo` is a multiple of a block."""
    if sys.platform != "linux" or mmap.PAGESIZE != BLOCK_BYTES or hi <= lo:
        return 0.0
    try:
        mapping = mmap.mmap(
            descriptor, hi - lo, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=lo
        )
    except (OSError, ValueError):
        return 0.0  # past the end of a file that was cut: reading it says so
    n_pages = -(-(hi - lo) // BLOCK_BYTES)
    states = (ctypes.c_ubyte * n_pages)()
    try:
        first = ctypes.c_char.from_buffer(mapping)
        failed = _libc().mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(hi - lo), states)
        del first
    finally:
        mapping.close()
    return 0.0 if failed else int((np.frombuffer(bytes(states), np.uint8) & 1).sum()) / n_pages
