"""Key files of encrypted sessions (FORMAT.md, section 17): made, read and destroyed.

Knows the store's own folder of keys and one elsewhere that the user may name; refuses to know what a key seals.
"""

from __future__ import annotations

import os
from enum import IntEnum
from pathlib import Path

from xxhash import xxh3_64_intdigest

from livingkv.errors import RecordDamaged
from livingkv.regular_files import read_regular
from livingkv.store.disk import Disk, Step, errors_named
from livingkv.store.overwriting import overwrite

KEYS = "keys"
KEY_ID_BYTES = 16
_KEY_BYTES = 32
_MAGIC = b"LKVKEY\r\n"
_SUFFIX = ".key"
_FILE_BYTES = len(_MAGIC) + KEY_ID_BYTES + 16 + _KEY_BYTES + 8


class KeyPlace(IntEnum):
    """Where a key's file is."""

    OWN = 0
    ELSEWHERE = 1


class KeyFiles:
    """The keys of one store. New ones go to the folder that the user named, else into the store's own."""

    def __init__(self, disk: Disk, root: Path, store_id: bytes, elsewhere: Path | None) -> None:
        self._disk = disk
        self._store_id = store_id
        self._own = root / KEYS
        self._elsewhere = elsewhere

    @property
    def folders(self) -> list[Path]:
        """Where keys are looked for, in order."""
        return [self._own] if self._elsewhere is None else [self._elsewhere, self._own]

    @property
    def has_own(self) -> bool:
        """True if the store has a folder of keys."""
        return self._own.is_dir()

    def make(self) -> bytes:
        """The id of a new key, whose file is durable on return. Raises StoreError."""
        key_id, folder = os.urandom(KEY_ID_BYTES), self.folders[0]
        body = _MAGIC + key_id + self._store_id + os.urandom(_KEY_BYTES)
        path = _path(folder, key_id)
        with errors_named(path):
            self._disk.make_folder(folder)
            descriptor = self._disk.open_new(path)
            try:
                os.fchmod(descriptor, 0o600)
                self._disk.write(descriptor, [body, xxh3_64_intdigest(body).to_bytes(8, "little")], 0)
                self._disk.sync(descriptor)
            finally:
                self._disk.close(descriptor)
            self._disk.sync_folder(folder)
        self._disk.reached(Step.KEY_MADE)
        return key_id

    def read(self, key_id: bytes) -> bytes | None:
        """A key, or None if its file is in no known folder. Raises RecordDamaged or StoreError."""
        for folder in self.folders:
            path = _path(folder, key_id)
            with errors_named(path):
                try:
                    data = read_regular(path, _FILE_BYTES + 1)
                except (FileNotFoundError, NotADirectoryError):
                    continue
            body = data[:-8]
            is_whole = len(data) == _FILE_BYTES and data[-8:] == xxh3_64_intdigest(body).to_bytes(8, "little")
            if not is_whole or not body.startswith(_MAGIC + key_id):
                raise RecordDamaged(f"{path} is damaged: restore it from a backup; nothing else opens its sessions")
            return body[-_KEY_BYTES:]
        return None

    def place(self, key_id: bytes) -> KeyPlace | None:
        """Where a key's file is, or None."""
        if _path(self._own, key_id).exists():
            return KeyPlace.OWN
        is_elsewhere = self._elsewhere is not None and _path(self._elsewhere, key_id).exists()
        return KeyPlace.ELSEWHERE if is_elsewhere else None

    def destroy(self, key_id: bytes, place: KeyPlace) -> bool:
        """Overwrite and remove a key's file wherever it is known; durable on return.

        False if it may still be in a folder that this store was not opened with. Raises StoreError.
        """
        for folder in self.folders:
            self._destroy(_path(folder, key_id))
        return place is KeyPlace.OWN or self._elsewhere is not None

    def _destroy(self, path: Path) -> None:
        with errors_named(path):
            if not path.exists():
                return
            if path.is_file():  # else there is nothing to overwrite: a pipe, say
                overwrite(self._disk, path)
            self._disk.reached(Step.KEY_OVERWRITTEN)
            self._disk.remove(path)
            self._disk.sync_folder(path.parent)
        self._disk.reached(Step.KEY_REMOVED)

    def remove_unused(self, used: set[bytes]) -> None:
        """Destroy keys in the store's own folder that no session has: their making broke off. Raises StoreError.

        Keys elsewhere may be those of a copy of this store, and stay.
        """
        names = {key_id.hex() + _SUFFIX for key_id in used}
        for path in sorted(self._own.glob(f"{'[0-9a-f]' * 32}{_SUFFIX}")):
            if path.name not in names:
                self._destroy(path)


def key_file(key_id: bytes) -> str:
    """The name of a key's file, in whatever folder it is."""
    return f"{key_id.hex()}{_SUFFIX}"


def _path(folder: Path, key_id: bytes) -> Path:
    return folder / key_file(key_id)
