"""The path of a store, and the folders beside it that a migration makes.

Knows names and renames; refuses to know what is in a store.
"""

from __future__ import annotations

from pathlib import Path

from livingkv.errors import StoreError, StoreUnwritable
from livingkv.store.disk import Disk, errors_named

MIGRATING = ".migrating"
BEFORE_MIGRATION = ".before-migration"
"""What the folders beside a store are called that a migration makes."""


def store_path(path: str | Path) -> Path:
    """The path of a store as a system can use it. Raises StoreUnwritable for one that is too long or has a zero byte,
    StoreError for one that a migration left empty between its two renames."""
    root = Path(path)
    if "\0" in str(root):
        raise StoreUnwritable(f"{str(root)!r} has a zero byte: choose another store path")
    with errors_named(root):
        if swap_broke_off(root):
            new = root.with_name(root.name + MIGRATING)
            raise StoreError(f"a migration of {root} broke off at its last step: finish it with `mv {new} {root}`")
    return root


def real_path(path: str | Path) -> Path:
    """The folder of a store itself, absolute, without links and dots, so that names beside it can be made. Raises
    StoreError."""
    with errors_named(Path(path)):
        return Path(path).resolve()


def swap_broke_off(root: Path) -> bool:
    """True where a migration has moved the old store away and not yet put the new one, which is whole, in its place.
    Raises OSError."""
    if root.exists() or root.is_symlink() or not root.name:
        return False
    return all((root.with_name(root.name + suffix)).is_dir() for suffix in (MIGRATING, BEFORE_MIGRATION))


def swap(disk: Disk, root: Path) -> Path:
    """Put the new store that a migration made beside `root` in its place; durable on return. Where the old one is.

    Broken off between the renames, it is finished by another call. Raises StoreError.
    """
    new, old = (root.with_name(root.name + suffix) for suffix in (MIGRATING, BEFORE_MIGRATION))
    with errors_named(root):
        if not swap_broke_off(root):
            if old.exists():
                raise StoreError(f"{old} exists already: move it away, then migrate again")
            disk.rename(root, old)
        disk.rename(new, root)
        disk.sync_folder(root.parent)
    return old
