"""Disks that misbehave: one that fails, one that breaks off at a step, one that ends its process there."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from livingkv.store import Disk, Step


class FailingDisk(Disk):
    """Fails changing operation number `fail_at` (counted from 0 since `arm`), or all from then on if `lasting`."""

    def __init__(self) -> None:
        self.n_operations = 0
        self._fail_at: int | None = None
        self._number = errno.EIO
        self._lasting = False

    def arm(self, fail_at: int | None, number: int, *, lasting: bool) -> None:
        """Fail with errno `number` from now on; None heals."""
        self.n_operations = 0
        self._fail_at, self._number, self._lasting = fail_at, number, lasting

    def _fails(self) -> bool:
        count, self.n_operations = self.n_operations, self.n_operations + 1
        return self._fail_at is not None and (count == self._fail_at or (self._lasting and count > self._fail_at))

    def _may_fail(self) -> None:
        if self._fails():
            raise OSError(self._number, os.strerror(self._number))

    def open_new(self, path: Path) -> int:
        self._may_fail()
        return super().open_new(path)

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview], offset: int) -> None:
        if self._fails():
            whole = b"".join(parts)
            super().write(descriptor, [whole[: len(whole) // 2]], offset)  # what a full disk leaves behind
            raise OSError(self._number, os.strerror(self._number))
        super().write(descriptor, parts, offset)

    def sync(self, descriptor: int) -> None:
        self._may_fail()
        super().sync(descriptor)

    def sync_folder(self, path: Path) -> None:
        self._may_fail()
        super().sync_folder(path)

    def truncate(self, descriptor: int, size: int) -> None:
        self._may_fail()
        super().truncate(descriptor, size)

    def remove(self, path: Path) -> None:
        self._may_fail()
        super().remove(path)


class DiesAt(Disk):
    """Raises KeyboardInterrupt at the `count`-th arrival at `step`, once. Neither is looked at before it is set."""

    def __init__(self, step: Step | None = None, count: int = 1) -> None:
        self.step = step
        self._left = count

    def reached(self, step: Step) -> None:
        if step is self.step:
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt


class KillingDisk(Disk):
    """Ends its process by SIGKILL: at the `count`-th arrival at `step`, or half way through the `count`-th write."""

    def __init__(self, step: Step | None, count: int) -> None:
        self._step = step
        self._left = count

    def _arrive(self) -> bool:
        self._left -= 1
        return self._left < 0

    def reached(self, step: Step) -> None:
        if step is self._step and self._arrive():
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview], offset: int) -> None:
        if self._step is None and self._arrive():
            whole = b"".join(parts)
            super().write(descriptor, [whole[: len(whole) // 2]], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(descriptor, parts, offset)
