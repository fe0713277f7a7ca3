"""Making a store and opening its parts (FORMAT.md, sections 1 to 3): folder, manifest and catalog agree.

Knows what must be where before the first read or append; refuses to know sessions and records.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from livingkv.errors import RecordDamaged, StoreError, StoreNotFound, StoreUnwritable
from livingkv.store.archive import ARCHIVE
from livingkv.store.catalog import Catalog, Changes
from livingkv.store.disk import Disk, Step, errors_named
from livingkv.store.fingerprint import Fingerprint
from livingkv.store.items import State
from livingkv.store.key_files import KEYS, KeyFiles
from livingkv.store.manifest import (
    ERASING,
    ERASING_DRAFT,
    FORMAT,
    MANIFEST,
    MANIFEST_DRAFT,
    Manifest,
    manifest_damaged,
    read_manifest,
    write_manifest,
)
from livingkv.store.sealing import Vault
from livingkv.store.store_path import store_path
from livingkv.store.writer_lock import LOCK

SEGMENTS = "segments"
CATALOG = "catalog"
INDEX = "index"
_KNOWN_FOLDERS = {SEGMENTS, CATALOG, "catalog.new", "catalog.lost", INDEX, ARCHIVE, KEYS, "lost+found"}
KNOWN_NAMES = {MANIFEST, MANIFEST_DRAFT, ERASING, ERASING_DRAFT, LOCK, *_KNOWN_FOLDERS}
_FIRST_STATE = State(next_session=1, next_segment=1, next_sequence=1, next_sentence=0)


def require_store(root: Path) -> None:
    """Raise StoreNotFound unless a finished store is at `root`; other errors if its manifest cannot be used."""
    if root.exists() and not root.is_dir():
        raise StoreUnwritable(f"{root} is not a folder: choose another store path")
    if read_manifest(root) is None:
        raise StoreNotFound(f"no store at {root}: check the path, or ingest something to make one there")


def require_place(root: Path) -> None:
    """Raise unless a store is at `root` or could be made there: StoreError if it is somebody else's folder, or
    StoreUnwritable. Changes nothing."""
    root = store_path(root)
    with errors_named(root):
        if root.exists():
            if not root.is_dir():
                raise StoreUnwritable(f"{root} is not a folder: choose another store path")
            _refuse_foreign(root)
        above = next((path for path in (root, *root.absolute().parents) if path.exists()), root)
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise StoreUnwritable(f"{above} may not be written to: check the path, its owner and its permissions")


def prepare_folder(disk: Disk, root: Path) -> None:
    """Make the store's folder, or raise: StoreError if it is somebody else's, StoreUnwritable, StoreFull."""
    with errors_named(root):
        if root.exists() and not root.is_dir():
            raise StoreUnwritable(f"{root} is not a folder: choose another store path")
        disk.make_folder(root)
        _refuse_foreign(root)


def _refuse_foreign(root: Path) -> None:
    if read_manifest(root) is None:
        foreign = sorted(path.name for path in root.iterdir() if path.name not in KNOWN_NAMES)
        if foreign:
            raise StoreError(f"{root} is not a store and not empty (it holds {foreign[0]}): choose another store path")


def make(
    disk: Disk, root: Path, fingerprint: Fingerprint, map_bytes: int, labels: Mapping[str, str] | None = None
) -> None:
    """Make a store in a prepared folder, or finish a making that broke off; durable on return. The lock is held.

    Raises FingerprintMismatch if the broken-off making was of another fingerprint.
    """
    with errors_named(root):
        for name in (SEGMENTS, CATALOG):
            disk.make_folder(root / name)
        disk.sync_folder(root)
        disk.reached(Step.FOLDERS_MADE)
        has_segments = any(path.suffix == ".seg" for path in (root / SEGMENTS).iterdir())
    if has_segments and not (root / CATALOG / "data.mdb").exists():
        raise _catalog_lost(root)
    catalog = Catalog(root / CATALOG, map_bytes, writable=True)
    try:
        with errors_named(root / CATALOG):
            disk.sync_folder(root / CATALOG)
        manifest = _identified(catalog, root, fingerprint, labels or {}, has_segments=has_segments)
        disk.reached(Step.CATALOG_MADE)
    finally:
        catalog.close()
    write_manifest(disk, root, manifest)


def _identified(
    catalog: Catalog, root: Path, fingerprint: Fingerprint, labels: Mapping[str, str], *, has_segments: bool
) -> Manifest:
    """What the catalog says the store is, said now if it does not yet."""
    with catalog.read() as snapshot:
        identity = snapshot.identity()
    if identity is not None:
        manifest = Manifest.from_json(identity, f"the catalog of {root}")
        manifest.fingerprint.require(fingerprint, root)
        return manifest
    if has_segments:
        raise _catalog_lost(root)
    manifest = Manifest(os.urandom(16), fingerprint, labels=dict(labels))

    def apply(changes: Changes) -> None:
        changes.put_identity(manifest.to_json())
        changes.put_state(_FIRST_STATE)

    catalog.commit(apply, before_commit=lambda: None)
    return manifest


def open_catalog(
    disk: Disk, root: Path, map_bytes: int, *, writable: bool, key_folder: Path | None = None
) -> tuple[Manifest, Catalog]:
    """The manifest and the open catalog of a finished store, which agree. Raises StoreError and its kinds."""
    manifest = read_manifest(root)
    if manifest is None:
        raise StoreNotFound(f"no store at {root}: check the path, or ingest something to make one there")
    if not has_catalog_file(root):
        raise _catalog_lost(root)
    with ExitStack() as stack:
        vault = Vault(KeyFiles(disk, root, manifest.store_id, key_folder))
        catalog = Catalog(root / CATALOG, map_bytes, writable=writable, vault=vault)
        stack.callback(catalog.close)
        with catalog.read() as snapshot:
            identity = snapshot.identity()
        if identity is None:
            raise _catalog_lost(root)
        if Manifest.from_json(identity, f"the catalog of {root}") != manifest:
            raise manifest_damaged(root, "it is not the one that the catalog knows")
        stack.pop_all()
    return manifest, catalog


def has_catalog_file(root: Path) -> bool:
    """True if something stands where the catalog's file belongs that could be one."""
    file = root / CATALOG / "data.mdb"
    return file.is_file() and file.stat().st_size > 0


def with_feature(disk: Disk, root: Path, catalog: Catalog, manifest: Manifest, feature: str) -> Manifest:
    """Make the store one that a livingkv without the feature refuses; durable on return. Raises StoreError."""
    with catalog.read() as snapshot:
        identity = snapshot.identity() or {}
    manifest = read_manifest(root) or manifest  # its disk budget may have been changed since the store was opened
    marked = replace(manifest, features=tuple(sorted({*manifest.features, feature})))
    if feature not in manifest.features:
        write_manifest(disk, root, marked)
    if feature not in identity.get("features", ()):
        catalog.commit(lambda changes: changes.put_identity(marked.identity()), before_commit=lambda: None)
    return marked


def _catalog_lost(root: Path) -> RecordDamaged:
    return RecordDamaged(
        f"{root} has lost its catalog (format {FORMAT}); nothing was changed: rebuild it from the segments with "
        f"`livingkv repair {root}` (Store.rebuild_catalog), or restore {root / CATALOG} from a backup"
    )
