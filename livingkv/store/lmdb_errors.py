"""What went wrong in LMDB, as a StoreError that says what to do; and room made sure of before LMDB needs it.

Knows the errors of LMDB and of the disk below it; refuses to know what was being done.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from livingkv.errors import StoreError, StoreFull, StoreUnwritable
from livingkv.store.disk import store_error

_ROOM_BYTES = 1 << 16


@contextmanager
def lmdb_errors_named(folder: Path) -> Iterator[None]:
    """Turn LMDB's errors of the block into StoreErrors. Those that `Environment` answers itself go through."""
    try:
        yield
    except (lmdb.MapFullError, lmdb.MapResizedError, lmdb.ReadersFullError):
        raise
    except lmdb.Error as error:
        raise _store_error(error, folder) from error
    except OSError as error:
        raise store_error(error, folder) from error


def _store_error(error: lmdb.Error, folder: Path) -> StoreError:
    text = str(error)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS):  # older bindings have no code
        if os.strerror(number) in text:
            return store_error(OSError(number, os.strerror(number)), folder)
    if os.strerror(errno.EIO) in text:  # LMDB's word for a short write, which is how a full disk shows first
        try:
            require_room(folder)
        except StoreFull as full:
            return full
        except OSError as failure:
            return store_error(failure, folder)
    if isinstance(error, lmdb.ReadonlyError):
        return StoreUnwritable(f"{folder} cannot be written ({text}): check its owner and its permissions")
    return StoreError(f"{folder} failed ({text}): check the disk, then run `livingkv check`")


def require_room(folder: Path) -> None:
    """Raise StoreFull unless some bytes can be written and synced in `folder`.

    LMDB maps its lock file: touching it on a full disk would be a bus error instead of an exception.
    """
    path = folder / "room.tmp"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            if os.write(descriptor, bytes(_ROOM_BYTES)) < _ROOM_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            path.unlink()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFull(f"no disk space for {folder}: free some and try again; the last commit stands") from error
        raise
