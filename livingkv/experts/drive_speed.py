"""How fast a drive reads: expert-sized reads past the page cache, by size and by how many are in flight.

The yardstick for what streaming reaches. Knows files and bytes; refuses to know experts.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from time import perf_counter

from livingkv.errors import ExpertReadError, InputError
from livingkv.experts.layout import BLOCK_BYTES
from livingkv.regular_files import open_regular

SIZES = (256 << 10, 1 << 20, 4 << 20)
DEPTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class DriveSpeed:
    """One measurement: `n_reads` of `read_bytes` each at random places, `depth` of them in flight."""

    read_bytes: int
    depth: int
    n_reads: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """All bytes by all the time."""
        return self.n_reads * self.read_bytes / self.seconds


def measure_drive(
    paths: Iterable[Path],
    *,
    sizes: Sequence[int] = SIZES,
    depths: Sequence[int] = DEPTHS,
    seconds_each: float = 1.0,
    seed: int = 0,
) -> list[DriveSpeed]:
    """Read random places of files with O_DIRECT, for `seconds_each` per size and depth, at least once each. Blocks;
    writes nothing.

    sizes: multiples of a block. Raises InputError where no file is as large as the largest read, ExpertReadError where
    files cannot be read, or not past the page cache: then the figures would be those of memory.
    """
    if any(size < BLOCK_BYTES or size % BLOCK_BYTES for size in sizes):
        raise InputError("sizes", list(sizes), f"multiples of {BLOCK_BYTES} are allowed")
    files: list[tuple[int, int, Path]] = []
    try:
        for path in paths:
            try:
                descriptor = open_regular(path, os.O_RDONLY | os.O_DIRECT)
            except OSError as error:
                reason = f"it cannot be read past the page cache ({error.strerror})"
                raise ExpertReadError(reason, path=str(path), offset=0) from error
            files.append((descriptor, os.fstat(descriptor).st_size, path))
        if max((size for _, size, _ in files), default=0) < max(sizes):
            raise InputError("sizes", max(sizes), "no file is as large: give smaller reads or another model")
        return [_measure(files, size, depth, seconds_each, seed) for size, depth in product(sizes, depths)]
    finally:
        for descriptor, _, _ in files:
            os.close(descriptor)


def _measure(files: list[tuple[int, int, Path]], n_bytes: int, depth: int, seconds: float, seed: int) -> DriveSpeed:
    places = [
        (descriptor, offset, path)
        for descriptor, size, path in files
        for offset in range(0, size - n_bytes + 1, n_bytes)
    ]
    Random(seed).shuffle(places)
    lock, errors = threading.Lock(), list[ExpertReadError]()
    n_begun = n_done = 0
    started = perf_counter()

    def work() -> None:
        nonlocal n_begun, n_done
        buffer = mmap.mmap(-1, n_bytes)
        is_first = True  # on a busy machine a thread may begin when the time is over
        while (is_first or perf_counter() - started < seconds) and not errors:
            is_first = False
            with lock:
                descriptor, offset, path = places[n_begun % len(places)]
                n_begun += 1
            try:
                n_read = os.preadv(descriptor, [buffer], offset)
            except OSError as error:
                errors.append(ExpertReadError(f"it cannot be read ({error.strerror})", path=str(path), offset=offset))
                return
            with lock:
                n_done += n_read == n_bytes
        buffer.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return DriveSpeed(n_bytes, depth, n_done, perf_counter() - started)
