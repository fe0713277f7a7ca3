"""An index over a pack: each expert is one read, and is compared with its checksum whenever it was read.

Knows manifests and checksums; refuses to know how packs are made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import xxhash

from livingkv.errors import ExpertReadError, PackError, PackOfAnother
from livingkv.experts.checkpoint import Checkpoint
from livingkv.experts.index import ExpertIndex
from livingkv.experts.keys import ExpertKey
from livingkv.experts.pack_layout import BLOCKS, LAYOUT, MAGIC, MANIFEST, PackLayout, begun, digest, layout_of
from livingkv.experts.safetensors_header import FileHeader, FileMark
from livingkv.regular_files import read_regular, require_regular


class PackIndex(ExpertIndex):
    """The experts of a pack. `checkpoint` is the pack's own file, not that of the model."""

    def __init__(
        self,
        blocks: FileHeader,
        layout: PackLayout,
        checksums: tuple[tuple[int, ...], ...],
        *,
        for_device: bool = False,
    ) -> None:
        super().__init__(
            Checkpoint((blocks,), {}), tuple(packed.layer for packed in layout.layers), for_device=for_device
        )
        self._layout = layout
        self._checksums = checksums

    def verify(self, key: ExpertKey, row: memoryview) -> None:
        """See ExpertIndex."""
        assert self.placement(key).runs[0].direct_at == 0, "a block is read as it is"
        if xxhash.xxh3_64_intdigest(row[: self._layout.end(key)]) != self._checksums[key.layer][key.expert]:
            path = str(self.checkpoint.files[0].path)
            reason = f"the checksum of {self.name(key)} does not match; pack the experts again"
            raise ExpertReadError(reason, path=path, offset=self._layout.start(key))


def open_pack(path: Path, source: ExpertIndex, *, for_device: bool = False) -> PackIndex:
    """The index over the pack in that folder, of the checkpoint that `source` indexes. Reads the manifest only.

    Raises PackError where there is no pack or a damaged one, PackOfAnother where it is one of another checkpoint.
    """
    try:
        written = read_regular(path / MANIFEST)
        require_regular(path / BLOCKS)
        status = (path / BLOCKS).stat()
    except OSError as error:
        reason = error.strerror or error
        raise PackError(f"{path}: there is no pack of experts in it ({error.filename}: {reason}); pack them") from error
    manifest = _checked(path, written)
    layout = layout_of(source)
    expected = begun(source, layout)
    if manifest.get("source") != expected["source"]:
        different = _difference(manifest, expected)
        raise PackOfAnother(f"{path}: it is a pack of another checkpoint ({different}); remove it and pack again")
    checksums = _checksums(path, manifest)
    if manifest != expected:
        raise PackError(f"{path / MANIFEST}: it does not fit its checkpoint; pack the experts again")
    if status.st_size != layout.size_bytes:
        raise PackError(
            f"{path / BLOCKS}: it has {status.st_size} bytes of {layout.size_bytes}; pack the experts again"
        )
    mark = FileMark(status.st_size, status.st_mtime_ns, status.st_ino, xxhash.xxh3_128_hexdigest(written))
    header = FileHeader(path / BLOCKS, mark, {})
    return PackIndex(header, layout, checksums, for_device=for_device)


def _checked(path: Path, written: bytes) -> dict[str, Any]:
    """The manifest without its digest, which is right."""
    try:
        manifest = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise PackError(f"{path / MANIFEST}: it is not JSON ({error}); pack the experts again") from error
    if not isinstance(manifest, dict) or manifest.get("magic") != MAGIC:
        raise PackError(f"{path / MANIFEST}: it is not the manifest of a pack of experts")
    if manifest.get("layout") != LAYOUT:
        raise PackError(f"{path / MANIFEST}: its layout is {manifest.get('layout')}, this version reads {LAYOUT}")
    said = manifest.pop("digest", None)
    if said != digest(manifest):
        raise PackError(f"{path / MANIFEST}: its digest does not match; pack the experts again")
    return manifest


def _checksums(path: Path, manifest: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The checksums, which are taken out of the manifest."""
    found = []
    try:
        for layer in manifest["layers"]:
            digits = layer.pop("checksums")
            if len(digits) != 16 * layer["n_experts"]:
                raise ValueError(f"{len(digits)} digits for {layer['n_experts']} experts")
            found.append(tuple(int(digits[at : at + 16], 16) for at in range(0, len(digits), 16)))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PackError(f"{path / MANIFEST}: its checksums cannot be read ({error}); pack the experts again") from error
    return tuple(found)


def _difference(manifest: dict[str, Any], expected: dict[str, Any]) -> str:
    """The first file that differs, in words."""
    source = manifest.get("source")
    files = source.get("files") if isinstance(source, dict) else None
    packed = [entry for entry in files if isinstance(entry, list)] if isinstance(files, list) else []
    for entry in expected["source"]["files"]:
        if entry not in packed:
            is_there = any(one[:1] == entry[:1] for one in packed)
            return f"{entry[0]} {'changed since' if is_there else 'is not in it'}"
    return "it is of other files, too"
