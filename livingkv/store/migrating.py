"""From one format version to the next: a step writes the new store beside the old one, then they change places.

Knows the order of steps and the swap; a step alone knows two versions. The old store stays until its owner removes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from livingkv.errors import FormatUnsupported, RecordDamaged, StoreError, StoreNotFound
from livingkv.json_fields import FieldError, Fields
from livingkv.regular_files import read_regular
from livingkv.store.disk import Disk, errors_named
from livingkv.store.manifest import FORMAT, MANIFEST

Step = Callable[[Path, Path], None]
"""Makes a store of the next version in the second folder, which is empty, from the first, which it only reads."""
STEPS: Mapping[int, Step] = {}
"""By the version that a step reads. Version 1 is the first, so there is none yet."""


def stored_version(root: Path) -> int:
    """The format version of the store at `root`. Raises StoreNotFound or RecordDamaged."""
    with errors_named(root / MANIFEST):
        try:
            data = read_regular(root / MANIFEST)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFound(f"no store at {root}: check the path") from error
    try:
        return Fields.read(data).integer("format", lo=1)
    except FieldError as error:
        raise RecordDamaged(f"{root / MANIFEST} is damaged: {error}") from error


def migrate(
    root: Path, *, disk: Disk | None = None, steps: Mapping[int, Step] = STEPS, target: int = FORMAT
) -> list[Path]:
    """Bring a store to version `target`; durable on return. Where the older ones are now, oldest first.

    No program may have the store open. Broken off, the store is as it was, or `migrate` finishes the swap.
    Raises FormatUnsupported if it is newer or a step is missing, StoreNotFound, StoreFull or StoreError.
    """
    disk = disk or Disk()
    kept: list[Path] = []
    _finish_swap(disk, root)
    while (version := stored_version(root)) != target:
        if version > target or version not in steps:
            raise FormatUnsupported(
                f"{root} has format {version}; there is no way from it to {target}: update livingkv"
            )
        kept.append(_one_step(disk, root, version, steps[version]))
    return kept


def _draft(root: Path) -> Path:
    return root.with_name(root.name + ".migrating")


def _one_step(disk: Disk, root: Path, version: int, step: Step) -> Path:
    draft, old = _draft(root), root.with_name(f"{root.name}.v{version}")
    if old.exists():
        raise StoreError(f"{old} exists already: move it away, then migrate again")
    with errors_named(draft):
        shutil.rmtree(draft, ignore_errors=True)
        disk.make_folder(draft)
        step(root, draft)
        if stored_version(draft) != version + 1:
            raise StoreError(f"the step from format {version} did not make a store of format {version + 1}")
        disk.rename(root, old)
    _finish_swap(disk, root)
    return old


def _finish_swap(disk: Disk, root: Path) -> None:
    """The new store takes the place that the old one has left."""
    if not root.exists() and (_draft(root) / MANIFEST).exists():
        with errors_named(root):
            disk.rename(_draft(root), root)
            disk.sync_folder(root.parent)
