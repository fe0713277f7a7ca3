"""Where files are not read past the page cache: taking them out of it, and the speed of a drive read through it.

Imports nothing but Python's own modules: a baseline's environment may have none of livingkv's packages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from random import Random
from time import perf_counter


def drop_from_cache(*folders: Path) -> None:
    """Take the files of folders out of the page cache, as far as nobody maps them."""
    for folder in folders:
        for path in (path for path in folder.rglob("*") if path.is_file()):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def buffered_bytes_per_s(paths: Iterable[Path], n_bytes: int, depth: int, seconds: float) -> float:
    """Reads of that size at random places, each once, after the files were dropped from the page cache."""
    files = [(os.open(path, os.O_RDONLY), path.stat().st_size) for path in paths]
    for descriptor, _ in files:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    places = [(one, offset) for one, size in files for offset in range(0, size - n_bytes + 1, n_bytes)]
    Random(0).shuffle(places)
    lock, started, n_done = threading.Lock(), perf_counter(), 0

    def work() -> None:
        nonlocal n_done
        buffer = bytearray(n_bytes)
        is_first = True
        while is_first or perf_counter() - started < seconds:
            is_first = False
            with lock:
                if not places:
                    return
                descriptor, offset = places.pop()
            n_read = os.preadv(descriptor, [buffer], offset)
            with lock:
                n_done += n_read

    threads = [threading.Thread(target=work) for _ in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = perf_counter() - started
    for descriptor, _ in files:
        os.close(descriptor)
    return n_done / took
