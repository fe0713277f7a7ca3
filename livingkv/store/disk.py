"""The file layer: every file operation of the store except LMDB's own goes through one `Disk`.

Knows files, folders, syncing and what their errors mean; refuses to know records. Tests put a subclass in its place
that fails, stops half way, ends the process at a step, or remembers what was synced.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path

from livingkv.errors import StoreError, StoreFull, StoreUnwritable
from livingkv.regular_files import SpecialFile, open_regular

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
_PARTS_PER_CALL = 512
_PUNCH_ALIGNMENT = 4096
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h


class Step(Enum):
    """The moments between which a store must survive the death of its process."""

    FOLDERS_MADE = auto()
    CATALOG_MADE = auto()
    MANIFEST_WRITTEN = auto()
    MANIFEST_RENAMED = auto()
    SEGMENT_MADE = auto()
    PAGES_WRITTEN = auto()
    LOG_WRITTEN = auto()
    SEGMENTS_SYNCED = auto()
    COMMIT_PREPARED = auto()
    COMMITTED = auto()
    SEGMENT_CUT = auto()
    RECOVERED = auto()
    ERASED = auto()
    SEGMENT_REMOVED = auto()
    SCRUBBED = auto()
    ARCHIVE_REPLACED = auto()
    CATALOG_REMOVED = auto()
    CATALOG_REBUILT = auto()
    ERASURE_MARKED = auto()
    FILE_ERASED = auto()
    MARK_REMOVED = auto()
    KEY_MADE = auto()
    KEY_OVERWRITTEN = auto()
    KEY_REMOVED = auto()


class Disk:
    """File operations on the real file system. All raise OSError; what is opened must be a regular file."""

    def make_folder(self, path: Path) -> None:
        """Make a folder, and those above it, unless they are there; the new names are durable."""
        if not path.is_dir():
            self.make_folder(path.parent)
            path.mkdir()
            self.sync_folder(path.parent)

    def open_new(self, path: Path) -> int:
        """Descriptor, for reading and writing, of an empty file; content that was there is dropped."""
        return open_regular(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open_existing(self, path: Path, *, writable: bool) -> int:
        """Descriptor of a file that exists."""
        return open_regular(path, os.O_RDWR if writable else os.O_RDONLY)

    def open_direct(self, path: Path) -> int | None:
        """Descriptor for reads past the kernel's page cache, or None where the system or file system has none."""
        if not hasattr(os, "O_DIRECT"):
            return None
        try:
            return open_regular(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return None  # a file system without it, as some network ones

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        """Bytes in the file."""
        return os.fstat(descriptor).st_size

    def read(self, descriptor: int, n_bytes: int, offset: int) -> bytes:
        """`n_bytes` from `offset`; fewer only where the file ends."""
        data = os.pread(descriptor, n_bytes, offset)
        if len(data) == n_bytes or not data:
            return data
        parts = [data]
        missing = n_bytes - len(data)
        while missing and (data := os.pread(descriptor, missing, offset + n_bytes - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def read_into(self, descriptor: int, parts: Sequence[memoryview], offset: int, n_wanted: int) -> int:
        """Fill the parts, one after another, from `offset` on; answers how many bytes were read.

        That is `n_wanted` or more, unless the file ends before. A direct descriptor needs whole, aligned blocks.
        """
        left = [part for part in parts if part]
        n_read = 0
        while left and n_read < n_wanted and (n := os.preadv(descriptor, left[:_PARTS_PER_CALL], offset + n_read)):
            n_read += n
            while left and n >= len(left[0]):
                n -= len(left.pop(0))
            if n:
                left[0] = left[0][n:]
        return n_read

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview], offset: int) -> None:
        """All parts, one after another, from `offset` on. Not durable before `sync`."""
        for first in range(0, len(parts), _PARTS_PER_CALL):
            left = [memoryview(part) for part in parts[first : first + _PARTS_PER_CALL] if part]
            while left:
                n_written = os.pwritev(descriptor, left, offset)
                if n_written == 0:
                    raise OSError(errno.EIO, "nothing could be written")
                offset += n_written
                while left and n_written >= len(left[0]):
                    n_written -= len(left.pop(0))
                if n_written:
                    left[0] = left[0][n_written:]

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes and size durable; blocks."""
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves data in the drive's cache
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable; blocks."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file to `size` bytes."""
        os.ftruncate(descriptor, size)

    def punch(self, descriptor: int, n_bytes: int, offset: int) -> bool:
        """Give the file system the blocks back that lie wholly in the span; it reads as zeros then, or is unchanged.

        False where the file system cannot do that.
        """
        lo, hi = whole_blocks(offset, n_bytes)
        if lo == hi:
            return True
        fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
        if fallocate is None:
            return False
        mode = ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE)
        if not fallocate(ctypes.c_int(descriptor), mode, ctypes.c_int64(lo), ctypes.c_int64(hi - lo)):
            return True
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV):
            return False
        raise OSError(number, os.strerror(number))

    def data_spans(self, descriptor: int) -> list[tuple[int, int]]:
        """The spans of a file, half-open, that are no holes; all of it where the file system knows no holes."""
        size, spans, at = self.size(descriptor), [], 0
        try:
            while at < size:
                lo = os.lseek(descriptor, at, os.SEEK_DATA)
                at = os.lseek(descriptor, lo, os.SEEK_HOLE)
                spans.append((lo, at))
        except OSError as error:
            if error.errno != errno.ENXIO:  # which says: nothing but a hole up to the end
                return [(0, size)]
        return spans

    def rename(self, old: Path, new: Path) -> None:
        """Put `old` in the place of `new`, atomically. Durable after the folder's sync."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """Remove a file; none there is fine."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def reached(self, step: Step) -> None:
        """Called at each step. Does nothing; tests end the process here."""


def whole_blocks(offset: int, n_bytes: int) -> tuple[int, int]:
    """The part [lo, hi) of a span that is whole blocks: what `Disk.punch` gives back. lo = hi if there is none."""
    lo = -(-offset // _PUNCH_ALIGNMENT) * _PUNCH_ALIGNMENT
    return lo, max(lo, (offset + n_bytes) // _PUNCH_ALIGNMENT * _PUNCH_ALIGNMENT)


def store_error(error: OSError, path: Path) -> StoreError:
    """What an operating system's error at `path` means to the user of a store."""
    if isinstance(error, SpecialFile):
        return StoreError(f"{path} is a pipe, socket or device, not a file: move it away, or name a file")
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFull(f"no disk space for {path} ({reason}): free some and try again; the last commit stands")
    if error.errno in _UNWRITABLE:
        return StoreUnwritable(f"{path} cannot be used ({reason}): check the path, its owner and its permissions")
    return StoreError(f"{path} failed ({reason}): check the disk; the last commit stands")


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Turn OSErrors of the block into StoreErrors that name `path`."""
    try:
        yield
    except OSError as error:
        raise store_error(error, path) from error
