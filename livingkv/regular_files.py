"""Opening what must be a regular file: a pipe in its place would block for ever, a device would do what devices do.

Knows kinds of files; refuses to know what is in them.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


class SpecialFile(OSError):
    """There is a pipe, a socket or a device where a file should be."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "it is a pipe, socket or device, not a file", str(path))


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Descriptor of a regular file; never waits for another process.

    `flags` may make it: with mode 0644 then. Raises SpecialFile, IsADirectoryError or another OSError.
    """
    require_regular(path)  # before it is opened, too: some devices act on that
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    try:
        _require_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def reading(path: Path) -> BinaryIO:
    """A regular file, open for reading. Raises OSError as `open_regular` does."""
    return open(open_regular(path), "rb")


def read_regular(path: Path, limit: int | None = None) -> bytes:
    """The bytes of a regular file, at most the first `limit`. Raises OSError as `open_regular` does."""
    with reading(path) as file:
        return file.read(-1 if limit is None else limit)


def require_regular(path: Path) -> None:
    """Raise SpecialFile or IsADirectoryError for what is no regular file; nothing there is fine."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    _require_regular(status, path)


def _require_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise SpecialFile(path)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is there. False, too, for a name that no file system takes or that may not be looked at."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def is_file(path: str | os.PathLike[str]) -> bool:
    """The same for a file."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False
