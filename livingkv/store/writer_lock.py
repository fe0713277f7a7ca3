"""One writer per store: an exclusive flock on the file `lock`, which says for people who holds it.

The kernel frees the lock when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import weakref
from contextlib import ExitStack
from pathlib import Path

from livingkv.errors import StoreLocked
from livingkv.json_fields import FieldError, Fields
from livingkv.regular_files import open_regular
from livingkv.store.disk import errors_named

LOCK = "lock"


class WriterLock:
    """The writer's lock on the store at `root`, or by another file's name on another folder, held from creation to
    `release`.

    Raises StoreLocked, naming the holder, also if this very process holds it; StoreFull, StoreUnwritable or StoreError.
    """

    def __init__(self, root: Path, name: str = LOCK) -> None:
        path = root / name
        with errors_named(path), ExitStack() as stack:
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, descriptor)
            _lock(descriptor, root)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "since": int(time.time())}).encode(), 0)
            stack.pop_all()
        self._descriptor: int | None = descriptor
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _release(this()))

    def release(self) -> None:
        """Free the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _release(lock: WriterLock | None) -> None:
    """In a forked child: it shares the parent's lock, and would keep it after the parent's death."""
    if lock is not None:
        lock.release()


def _lock(descriptor: int, root: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder: int | None = None
        with contextlib.suppress(FieldError):
            holder = Fields.read(os.pread(descriptor, 4096, 0)).integer("pid", lo=1)
        who = "another writer" if holder is None else f"process {holder}"
        if holder == os.getpid():
            who = f"this process ({holder})"
        raise StoreLocked(f"{root} is in use: {who} writes to it; wait, or end that process") from error
