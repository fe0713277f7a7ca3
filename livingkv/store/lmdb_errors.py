"""What went wrong in LMDB, as a StoreError that says what to do; and room made sure of before LMDB needs it.

Knows the errors of LMDB and of the disk below it; refuses to know what was being done.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from livingkv.errors import RecordDamaged, StoreError, StoreFull, StoreUnwritable
from livingkv.store.disk import store_error

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNREADABLE = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
_ROOM_BYTES = 1 << 16
_LOCK_BYTES = 1 << 16
"""What LMDB's lock file takes for 1022 readers: 64 bytes each, and two pieces of the same size more."""
_BLOCK_BYTES = 512  # the unit of st_blocks


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
    for number in (*_FULL, errno.EACCES, errno.EROFS):  # older bindings have no code
        if os.strerror(number) in text:
            return store_error(OSError(number, os.strerror(number)), folder)
    if os.strerror(errno.EIO) in text:  # LMDB's word for a short write, which is how a full disk shows first
        try:
            _require_room(folder)
        except StoreFull as full:
            return full
        except OSError as failure:
            return store_error(failure, folder)
    if isinstance(error, lmdb.ReadonlyError):
        return StoreUnwritable(f"{folder} cannot be written ({text}): check its owner and its permissions")
    if isinstance(error, _UNREADABLE):
        return RecordDamaged(
            f"{folder} cannot be read ({text}); nothing was changed: `livingkv repair {folder.parent}` rebuilds it "
            "from the segments"
        )
    return StoreError(f"{folder} failed ({text}): check the disk, then run `livingkv check`")


def _require_room(folder: Path) -> None:
    """Raise StoreFull unless some bytes can be written and synced in `folder`."""
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
        if error.errno in _FULL:
            raise StoreFull(f"no disk space for {folder}: free some and try again; the last commit stands") from error
        raise


def reserve_lock_file(path: Path) -> None:
    """Give LMDB's lock file its blocks before it is mapped; raises OSError, as where the disk is full.

    LMDB makes it sparse: touching a block that the disk has no room for would end the process by a bus error, and
    readers touch it as well.
    """
    try:
        if not path.exists():
            _make_lock_file(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _FULL:
            raise
        return  # LMDB does without on a read-only file system, and names what else is wrong
    try:
        status = os.fstat(descriptor)
        n_bytes = max(status.st_size, _LOCK_BYTES)
        if status.st_blocks * _BLOCK_BYTES < n_bytes and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, n_bytes)  # changes no byte that is there
    except OSError as error:
        if error.errno in _FULL:
            raise  # else a file system that cannot reserve
    finally:
        os.close(descriptor)


def _make_lock_file(path: Path) -> None:
    """A lock file of zeros, whole from the moment that it has its name: another process may be about to use it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        if os.write(descriptor, bytes(_LOCK_BYTES)) < _LOCK_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(descriptor)
        draft.unlink()
