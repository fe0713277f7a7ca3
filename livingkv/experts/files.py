"""The open files of a checkpoint: runs of bytes read into memory, past the page cache where the file system lets it.

Every read of expert bytes goes through here, so that tests can make it fail. Knows descriptors and errors; refuses to
know experts. Threads may share it.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable

from livingkv.errors import ExpertReadError
from livingkv.experts.checkpoint import Checkpoint
from livingkv.experts.layout import BLOCK_BYTES
from livingkv.regular_files import open_regular

LOG = logging.getLogger("livingkv.experts")

Preadv = Callable[[int, list[memoryview], int], int]
_REFUSED = {errno.EINVAL, errno.EOPNOTSUPP}


class CheckpointFiles:
    """The files of one checkpoint, open for reading. direct: read with O_DIRECT where that works.

    preadv: os.preadv, or what a test puts in its place.
    """

    def __init__(self, checkpoint: Checkpoint, *, direct: bool, preadv: Preadv = os.preadv) -> None:
        self._checkpoint = checkpoint
        self._preadv = preadv
        self._buffered: list[int] = []
        self._direct: list[int] = []
        self._retired: list[int] = []
        self._lock = threading.Lock()
        try:
            for number, file in enumerate(checkpoint.files):
                try:
                    self._buffered.append(open_regular(file.path))
                except OSError as error:
                    raise self._error(number, 0, error) from error
            if direct:
                self._open_direct()
        except BaseException:
            self.close()
            raise

    @property
    def is_direct(self) -> bool:
        """Whether reads go past the page cache."""
        return bool(self._direct)

    def read(self, file: int, target: memoryview, offset: int, n_needed: int) -> None:
        """Fill `target` from `offset` on; of it `n_needed` bytes must be in the file. Blocks.

        `target` and `offset` are aligned to blocks. Raises ExpertReadError, CheckpointChanged where the file is not
        the one that was indexed; `target` then holds anything.
        """
        n_read = 0
        direct = self._direct
        while n_read < n_needed:
            # what a short direct read left over is not aligned any more
            descriptor = direct[file] if direct and n_read % BLOCK_BYTES == 0 else self._buffered[file]
            try:
                n_now = self._preadv(descriptor, [target[n_read:]], offset + n_read)
            except OSError as error:
                if direct and error.errno in _REFUSED:
                    self._give_up_direct(error)
                    direct = []
                    continue
                self._checkpoint.require_unchanged(file, offset + n_read)
                raise self._error(file, offset + n_read, error) from error
            if n_now == 0:
                self._checkpoint.require_unchanged(file, offset + n_read)
                reason = f"the file ends {n_needed - n_read} bytes too early; fetch the model again"
                raise ExpertReadError(reason, path=str(self._path(file)), offset=offset + n_read)
            n_read += n_now
        self._checkpoint.require_unchanged(file, offset)

    def close(self) -> None:
        """Close all files. No read may be under way."""
        for descriptor in self._buffered + self._direct + self._retired:
            os.close(descriptor)
        self._buffered, self._direct, self._retired = [], [], []

    def _open_direct(self) -> None:
        direct: list[int] = []
        try:
            for file in self._checkpoint.files:
                direct.append(open_regular(file.path, os.O_RDONLY | os.O_DIRECT))
        except OSError as error:
            for descriptor in direct:
                os.close(descriptor)
            if error.errno not in _REFUSED:
                raise self._error(len(direct), 0, error) from error
            self._say(error)
        else:
            self._direct = direct

    def _give_up_direct(self, error: OSError) -> None:
        """Another thread may read directly at this moment, so the descriptors stay open until `close`."""
        with self._lock:
            kept, self._direct = self._direct, []
            self._retired += kept
        if kept:
            self._say(error)

    def _say(self, error: OSError) -> None:
        folder = self._checkpoint.files[0].path.parent
        LOG.warning(
            "%s: its file system takes no direct reads (%s); read through the page cache", folder, error.strerror
        )

    def _path(self, file: int) -> str:
        return str(self._checkpoint.files[file].path)

    def _error(self, file: int, offset: int, error: OSError) -> ExpertReadError:
        return ExpertReadError(f"it cannot be read ({error.strerror or error})", path=self._path(file), offset=offset)
