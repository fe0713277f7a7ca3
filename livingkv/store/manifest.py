"""manifest.json (FORMAT.md, section 2): what a store is, readable by a person.

Knows that one file; refuses to know the rest of the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import repr as short
from typing import Any

from livingkv.errors import FormatUnsupported, RecordDamaged, StoreHalfErased
from livingkv.json_fields import FieldError, Fields
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
        """The manifest that `to_json` described. Raises RecordDamaged or FormatUnsupported, naming `what` and the
        field."""
        try:
            return cls._from_fields(values if isinstance(values, Fields) else Fields(values), what)
        except FieldError as error:
            raise RecordDamaged(f"{what} is damaged: {error}") from error

    @classmethod
    def _from_fields(cls, given: Fields, what: str) -> Manifest:
        version = given.integer("format", lo=1)
        features = tuple(sorted(set(given.texts("features")))) if "features" in given.names else ()
        unknown = [feature for feature in features if feature not in FEATURES]
        if version > FORMAT or unknown:
            extra = f" with {short(', '.join(unknown))}" if unknown else ""
            raise FormatUnsupported(
                f"{what} has format {version}{extra}; this livingkv reads format {FORMAT}: update livingkv"
            )
        store_id = given.text("store_id")
        if not re.fullmatch("[0-9a-fA-F]{32}", store_id):
            raise FieldError(f"store_id is {short(store_id)}, not 32 hex digits")
        labels = given.fields("labels") if "labels" in given.names else Fields({})
        budget = given.integer("disk_budget_bytes", lo=1) if given.has("disk_budget_bytes") else None
        return cls(
            store_id=bytes.fromhex(store_id),
            fingerprint=Fingerprint.from_json(given.value("fingerprint"), f"{what} is damaged: fingerprint"),
            features=features,
            format=version,
            labels={name: labels.text(name, stray_bytes=True) for name in sorted(labels.names)},
            disk_budget_bytes=budget,
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
        given = Fields.read(data)
    except FieldError as error:
        raise manifest_damaged(root, str(error)) from error
    return Manifest.from_json(given, str(path))


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
