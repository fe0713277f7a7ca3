"""Files overwritten with zeros before their names go, where the file system allows.

Knows files and holes in them; refuses to know what they held.
"""

from __future__ import annotations

import errno
from pathlib import Path

from livingkv.store.disk import Disk, Step

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_ZEROS = bytes(1 << 20)


def overwrite_and_remove(disk: Disk, path: Path) -> int:
    """Overwrite a file's data, sync it, remove its name; bytes overwritten. The folder is the caller's to sync.

    None there is fine. A link is removed and not followed. Where a copying file system has no room for zeros the name
    goes all the same and 0 is answered. Raises OSError.
    """
    n_bytes = 0
    if path.is_file() and not path.is_symlink():
        try:
            n_bytes = overwrite(disk, path)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
    disk.remove(path)
    disk.reached(Step.FILE_ERASED)
    return n_bytes


def overwrite(disk: Disk, path: Path) -> int:
    """Overwrite a file's data and sync it; bytes overwritten. Its name stays. Raises OSError."""
    descriptor = disk.open_existing(path, writable=True)
    try:
        spans = disk.data_spans(descriptor)
        for lo, hi in spans:
            for at in range(lo, hi, len(_ZEROS)):
                disk.write(descriptor, [_ZEROS[: hi - at]], at)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    return sum(hi - lo for lo, hi in spans)
