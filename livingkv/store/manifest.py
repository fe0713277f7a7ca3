"""manifest.json (FORMAT.md, section 2): what a store is, readable by a person.

Knows that one file; refuses to know the rest of the folder.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from livingkv.errors import FormatUnsupported, RecordDamaged, StoreHalfErased
from livingkv.regular_files import read_regular
from livingkv.store.disk import Disk, Step, errors_named
from livingkv.store.fingerprint import Fingerprint

FORMAT = 1
ENCRYPTION = "encryption"
FEATURES: frozenset[str] = frozenset({ENCRYPTION})
MANIFEST = "manifest.json"
MANIFEST_DRAFT = "manifest.json.tmp"
ERASING = "erasing.json"  # the mark of a store that is being erased: section 16
ERASING_DRAFT = "erasing.json.tmp"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A store's identity. `store_id` is 16 random bytes. `labels`: notes of whoever made it, never compared.

    disk_budget_bytes: the disk budget in force, None without one; no part of the identity.
    `features` are not compared either: the manifest gets one before the catalog's copy does.
    """

    store_id: bytes
    fingerprint: Fingerprint
    features: tuple[str, ...] = field(default=(), compare=False)
    format: int = FORMAT
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    disk_budget_bytes: int | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of manifest.json."""
        budget = {} if self.disk_budget_bytes is None else {"disk_budget_bytes": self.disk_budget_bytes}
        return {
            "format": self.format,
            "store_id": self.store_id.hex(),
            "features": list(self.features),
            "fingerprint": self.fingerprint.to_json(),
            "labels": dict(self.labels),
            **budget,
        }

    def identity(self) -> dict[str, Any]:
        """What the catalog keeps of it: all but the disk budget, which may change."""
        return replace(self, disk_budget_bytes=None).to_json()

    @classmethod
    def from_json(cls, values: object, what: str) -> Manifest:
        """The manifest that `to_json` described. Raises RecordDamaged or FormatUnsupported, naming `what`."""
        if not isinstance(values, dict) or type(values.get("format")) is not int:
            raise RecordDamaged(f"{what} is not a store's: it has no format number")
        features = tuple(sorted(set(map(str, values.get("features") or ()))))
        unknown = [feature for feature in features if feature not in FEATURES]
        if values["format"] > FORMAT or unknown:
            extra = f" with {', '.join(unknown)}" if unknown else ""
            raise FormatUnsupported(
                f"{what} has format {values['format']}{extra}; this livingkv reads format {FORMAT}: update livingkv"
            )
        store_id = b""
        with contextlib.suppress(TypeError, ValueError):
            store_id = bytes.fromhex(values.get("store_id", ""))
        if len(store_id) != 16:
            raise RecordDamaged(f"{what} is damaged: store_id is not 32 hex digits")
        labels = values.get("labels", {})
        if not isinstance(labels, dict) or not all(isinstance(label, str) for label in labels.values()):
            raise RecordDamaged(f"{what} is damaged: labels are not an object of strings")
        budget = values.get("disk_budget_bytes")
        if budget is not None and (type(budget) is not int or budget < 1):
            raise RecordDamaged(f"{what} is damaged: disk_budget_bytes is not a number of bytes")
        return cls(
            store_id, Fingerprint.from_json(values.get("fingerprint")), features, values["format"], labels, budget
        )


def read_manifest(root: Path) -> Manifest | None:
    """The manifest of the store at `root`, or None if there is none.

    Raises RecordDamaged, FormatUnsupported, StoreHalfErased, StoreUnwritable or StoreError.
    """
    path = root / MANIFEST
    with errors_named(path):
        if (root / ERASING).exists():
            raise StoreHalfErased(f"{root} was being erased and is not whole: finish that with `livingkv erase {root}`")
        try:
            data = read_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        values = json.loads(data)
    except ValueError as error:  # bad UTF-8 is one too
        raise manifest_damaged(root, str(error)) from error
    return Manifest.from_json(values, str(path))


def manifest_damaged(root: Path, reason: str) -> RecordDamaged:
    """The manifest cannot be trusted, but the catalog has a copy."""
    return RecordDamaged(
        f"{root / MANIFEST} is damaged ({reason}): remove it, then ingest with the model that wrote the store, "
        "and it is written anew"
    )


def write_manifest(disk: Disk, root: Path, manifest: Manifest) -> None:
    """Put the manifest in place, atomically; durable on return. Raises StoreError."""
    draft = root / MANIFEST_DRAFT
    data = json.dumps(manifest.to_json(), indent=2).encode() + b"\n"
    with errors_named(root / MANIFEST):
        descriptor = disk.open_new(draft)
        try:
            disk.write(descriptor, [data], 0)
            disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        disk.reached(Step.MANIFEST_WRITTEN)
        disk.rename(draft, root / MANIFEST)
        disk.reached(Step.MANIFEST_RENAMED)
        disk.sync_folder(root)
