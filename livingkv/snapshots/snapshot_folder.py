"""Snapshots on disk: the files of one folder, those used longest ago removed first, within a budget of bytes.

The time of a file's change is that of its last use. Processes may share a folder. Knows names and files; refuses to
know caches.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import xxhash

from livingkv.errors import StoreError
from livingkv.snapshots.key import SnapshotKey
from livingkv.snapshots.snapshot_file import (
    DRAFT,
    Snapshot,
    Tokens,
    is_left,
    read_snapshot,
    tokens_digest,
    write_snapshot,
)
from livingkv.store.disk import Disk, errors_named
from livingkv.store.overwriting import overwrite_and_remove

LOG = logging.getLogger("livingkv.snapshots")

_SUFFIX = ".safetensors"
_OLD_DRAFT_S = 3600.0


class SnapshotName(NamedTuple):
    """What a snapshot is called, in RAM and in the name of its file. It finds one; it proves nothing."""

    user: str
    n_tokens: int
    digest: str


def name_of(user: str, tokens: Tokens) -> SnapshotName:
    """The name of the snapshot of those tokens."""
    return SnapshotName(user, len(tokens), tokens_digest(tokens))


class _File(NamedTuple):
    used_ns: int
    path: Path
    n_bytes: int


class SnapshotFolder:
    """A folder for snapshots with that key, made with mode 0700 if it is not there. Raises StoreError."""

    def __init__(self, folder: Path, key: SnapshotKey, budget_bytes: int, disk: Disk) -> None:
        self._folder = folder
        self._key = key
        self._budget_bytes = budget_bytes
        self._disk = disk
        self.n_evicted = 0
        """Snapshots that made room for others since this was made."""
        with errors_named(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for draft in self._drafts():  # of a process that died while it wrote
                if time.time() - draft.used_ns / 1e9 > _OLD_DRAFT_S:
                    overwrite_and_remove(disk, draft.path)

    @property
    def n_bytes(self) -> int:
        """Bytes of all snapshots in the folder, whatever their key."""
        return sum(file.n_bytes for file in self._files())

    def lengths(self, user: str) -> set[int]:
        """Numbers of tokens of the snapshots that a user has here."""
        prefix = self._prefix(user)
        names = [file.path.name for file in self._files() if file.path.name.startswith(prefix)]
        return {int(number) for name in names if (number := name.removeprefix(prefix).partition("-")[0]).isdecimal()}

    def load(self, name: SnapshotName, tokens: Tokens) -> Snapshot | None:
        """The snapshot of exactly those tokens; None where there is no file of that name.

        Raises SnapshotDamaged for a file that is not that snapshot, StoreError where it cannot be read.
        """
        path = self._path(name)
        try:
            snapshot = read_snapshot(self._disk, path, self._key, name.user, tokens)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        _used_now(path)
        return snapshot

    def write(self, snapshot: Snapshot) -> str | None:
        """None when the snapshot is durable, else why it is not. Never raises because of the disk."""
        path = self._path(name_of(snapshot.user, snapshot.tokens))
        if snapshot.n_bytes > self._budget_bytes:
            return f"its {snapshot.n_bytes} bytes are more than the budget of {self._budget_bytes}"
        try:
            if _used_now(path):
                return None
            self._make_room(snapshot.n_bytes)
            write_snapshot(self._disk, path, self._key, snapshot)
            self._make_room(0)  # for what a file has beside the state
        except StoreError as error:
            LOG.warning("a snapshot is not on disk: %s", error)
            return str(error)
        return None if path.exists() else f"with its header it is more than the budget of {self._budget_bytes} bytes"

    def remove(self, name: SnapshotName) -> None:
        """Remove a snapshot; none there is fine, one that cannot be removed is logged."""
        self._remove(self._path(name))

    def forget(self, user: str | None) -> int:
        """Remove what a user has here, with any key, or everything, overwritten first, and what writing broke off.

        Answers how many snapshots. Raises StoreError.
        """
        beginning = "" if user is None else f"{_user_digest(user)}-"
        files, drafts = (
            [file.path for file in found if file.path.name.startswith(beginning)]
            for found in (self._files(), self._drafts())
        )
        with errors_named(self._folder):
            for path in files + drafts:
                overwrite_and_remove(self._disk, path)
            self._disk.sync_folder(self._folder)
        return len(files)

    def _make_room(self, n_bytes: int) -> None:
        for draft in self._drafts():  # nobody's any more, and not in the budget
            if is_left(draft.path):
                self._remove(draft.path)
        files = sorted(self._files())
        used = sum(file.n_bytes for file in files)
        for file in files:
            if used + n_bytes <= self._budget_bytes:
                return
            self._remove(file.path)
            self.n_evicted += 1
            used -= file.n_bytes

    def _files(self) -> Iterator[_File]:
        """The snapshots in the folder."""
        return self._found(f"*-*-*-*{_SUFFIX}")

    def _drafts(self) -> Iterator[_File]:
        """What is being written, or was when its process died."""
        return self._found(f"*{DRAFT}")

    def _found(self, pattern: str) -> Iterator[_File]:
        """Files of those names. One that goes away meanwhile, by another process, is not there."""
        for path in self._folder.glob(pattern):
            try:
                status = path.stat()
            except OSError:
                continue
            yield _File(status.st_mtime_ns, path, status.st_size)

    def _remove(self, path: Path) -> None:
        try:
            self._disk.remove(path)
        except OSError as error:
            LOG.warning("%s cannot be removed (%s)", path, error.strerror or error)

    def _prefix(self, user: str) -> str:
        return f"{_user_digest(user)}-{self._key.digest[:32]}-"

    def _path(self, name: SnapshotName) -> Path:
        return self._folder / f"{self._prefix(name.user)}{name.n_tokens:09}-{name.digest}{_SUFFIX}"


def _used_now(path: Path) -> bool:
    """Note that a file is used, if it is there. One whose time cannot be set is only removed earlier."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        LOG.warning("%s: its time cannot be set (%s)", path, error.strerror or error)
    return True


def _user_digest(user: str) -> str:
    return xxhash.xxh3_64_hexdigest(user.encode())
