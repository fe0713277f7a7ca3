"""Memory that is about to be filled, mapped in large pages.

Knows sizes; knows nothing of what lies in it. Taking memory page by page costs a fault for every 4 KiB, which takes
several times as long as writing to it; where most of it will be used, a fault for every 2 MiB takes no more memory.
"""

from __future__ import annotations

import mmap
from contextlib import suppress


def private_mapping(n_bytes: int) -> mmap.mmap:
    """Zeros of this process alone, in large pages where the kernel has them. It counts as the process's own anonymous
    memory, and a forked child cannot write into it."""
    mapping = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
