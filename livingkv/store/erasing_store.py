"""A whole store erased (FORMAT.md, section 16): what forgets a tenant, who is one store.

Knows which names are a store's, and the order in which they go; opens the store only to count what it held.
"""

from __future__ import annotations

import contextlib
import errno
import json
from dataclasses import asdict, replace
from pathlib import Path

from livingkv.errors import StoreError, StoreLocked, StoreNotFound, StoreUnwritable
from livingkv.json_fields import FieldError, Fields
from livingkv.regular_files import SpecialFile, read_regular
from livingkv.results import Erased
from livingkv.store.disk import Disk, Step, errors_named
from livingkv.store.environment import is_open
from livingkv.store.making import CATALOG, KNOWN_NAMES
from livingkv.store.manifest import ERASING, ERASING_DRAFT, MANIFEST
from livingkv.store.overwriting import overwrite_and_remove
from livingkv.store.stats import folder_bytes
from livingkv.store.store import Store
from livingkv.store.store_path import BEFORE_MIGRATION, MIGRATING, real_path, store_path
from livingkv.store.writer_lock import LOCK, WriterLock

_OURS = KNOWN_NAMES - {"lost+found"}
_LAST = (LOCK, ERASING)
_COUNTS = ("n_sessions", "n_sentences", "n_tokens", "n_pages", "n_archived", "n_bytes")


def what_erasing_takes(path: str | Path) -> Erased:
    """What `erase_store` would erase, counted; changes nothing. Raises StoreNotFound or StoreUnwritable."""
    root = store_path(path)
    with errors_named(root):
        if root.is_symlink():
            raise StoreUnwritable(f"{root} is a link: name the folder that it leads to")
    if not _is_store(root):
        raise StoreNotFound(f"no store at {root}: check the path")
    root = real_path(root)
    marked = _marked(root)
    if marked is not None:
        return marked
    folders = [*_copies(root), root]
    with errors_named(root):
        size_bytes = sum(folder_bytes(folder) for folder in folders)
    found = Erased(tuple(map(str, folders)), None, None, None, None, None, None, size_bytes)
    with contextlib.suppress(StoreError), Store.open(root, mode="read") as store:
        stats = store.stats()
        found = replace(
            found,
            n_sessions=stats.n_sessions,
            n_sentences=stats.n_sentences,
            n_tokens=stats.n_tokens,
            n_pages=stats.n_pages,
            n_bytes=stats.n_bytes,
        )
        found = replace(found, n_archived=len(store.archived()))
    return found


def erase_store(path: str | Path, *, disk: Disk | None = None) -> Erased:
    """Erase the store at `path`: every file of it is overwritten, synced and removed, then its folder, and with it the
    copies that a migration left beside it. Durable on return. A damaged store, or one of a newer format, goes too.

    Broken off, the store refuses to open (StoreHalfErased), and the next call finishes. A file that was shared by hard
    links is overwritten for all of them. Names that are not a store's stay, and the folder with them.

    Raises StoreLocked while anybody writes to it or this process reads it, StoreNotFound, StoreUnwritable, StoreError.
    """
    disk = disk or Disk()
    what_erasing_takes(path)  # nothing is locked that is no store
    root = real_path(path)
    with contextlib.ExitStack() as locks:
        folders = [*_copies(root), root]
        for folder in folders:
            locks.callback(WriterLock(folder).release)
            if is_open(folder / CATALOG):
                raise StoreLocked(f"{folder} is open in this process: close it first")
        found = what_erasing_takes(root)
        for folder in reversed(folders):
            _mark(disk, folder, found)
        n_overwritten = sum(_erase_folder(disk, folder) for folder in folders)
    with errors_named(root):
        left = tuple(str(path) for folder in folders if folder.is_dir() for path in sorted(folder.iterdir()))
    return replace(found, bytes_overwritten=n_overwritten, left=left)


def _is_store(root: Path) -> bool:
    with errors_named(root):
        return root.is_dir() and any((root / name).exists() for name in (MANIFEST, ERASING))


def _copies(root: Path) -> list[Path]:
    """Folders that a migration of this store left, or what an erasing that broke off left of them."""
    old, new = (root.with_name(root.name + suffix) for suffix in (BEFORE_MIGRATION, MIGRATING))
    with errors_named(root):
        found = [path for path in (old, new) if path.is_dir() and not path.is_symlink()]
        return [path for path in found if path == new or _is_store(path) or not any(path.iterdir())]


def _marked(root: Path) -> Erased | None:
    """What an erasing that broke off had counted; None if there was none. An unreadable mark counts nothing."""
    with errors_named(root / ERASING):
        try:
            data = read_regular(root / ERASING)
        except FileNotFoundError:
            return None
        except (SpecialFile, IsADirectoryError):
            data = b""
    try:
        given = Fields.read(data)
        counts = [given.integer(name) if given.has(name) else None for name in _COUNTS]
        n_sessions, n_sentences, n_tokens, n_pages, n_archived, n_bytes = counts
        return Erased(
            paths=given.texts("paths"),
            n_sessions=n_sessions,
            n_sentences=n_sentences,
            n_tokens=n_tokens,
            n_pages=n_pages,
            n_archived=n_archived,
            n_bytes=n_bytes,
            size_bytes=given.integer("size_bytes"),
        )
    except FieldError:
        return Erased((str(root),), None, None, None, None, None, None, folder_bytes(root))


def _mark(disk: Disk, root: Path, found: Erased) -> None:
    """Put the mark in place, atomically; durable on return."""
    draft = root / ERASING_DRAFT
    with errors_named(root / ERASING):
        if (root / ERASING).exists():
            return
        descriptor = disk.open_new(draft)
        try:
            disk.write(descriptor, [json.dumps(asdict(found)).encode()], 0)
            disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        disk.rename(draft, root / ERASING)
        disk.sync_folder(root)
    disk.reached(Step.ERASURE_MARKED)


def _erase_folder(disk: Disk, root: Path) -> int:
    """Erase a store's names in a folder, files before folders, the mark last; then the folder, if nothing else is in
    it. A store that a migration was making holds nothing that is not a copy: all of it goes."""
    with errors_named(root):
        here = [path for path in root.iterdir() if path.name in _OURS or root.name.endswith(MIGRATING)]
        here = [path for path in here if path.name not in _LAST]
        n_bytes = sum(_erase(disk, path) for path in sorted(here, key=lambda path: (path.is_dir(), path.name)))
        disk.sync_folder(root)
        for name in _LAST:
            overwrite_and_remove(disk, root / name)
            disk.sync_folder(root)
        disk.reached(Step.MARK_REMOVED)
        try:
            disk.remove_folder(root)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):  # busy: a file system is mounted there
                raise
        disk.sync_folder(root.parent)
    return n_bytes


def _erase(disk: Disk, path: Path) -> int:
    """Erase a file, or a folder with all below it; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        return overwrite_and_remove(disk, path)
    n_bytes = 0
    for inner in sorted(path.iterdir()):
        n_bytes += _erase(disk, inner)
    disk.remove_folder(path)
    return n_bytes
