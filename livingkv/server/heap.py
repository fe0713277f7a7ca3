"""The C heap of the process: kept from growing with the threads that once allocated.

Knows glibc's malloc; knows nothing of who allocates. glibc gives threads heaps ("arenas") of their own, up to eight for
each core, and what a thread leaves free in one is of no use to a thread in another. The index writes with threads that
live for one commit, so that a service which stores grows by megabytes a commit until all arenas are large.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 2


def share_heaps() -> bool:
    """Have all threads share two heaps, those that are made from now on. False where the C library cannot be told."""
    library = ctypes.CDLL(None)
    return hasattr(library, "mallopt") and library.mallopt(_M_ARENA_MAX, _ARENAS) == 1
