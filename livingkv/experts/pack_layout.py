"""The bytes of a pack: where each part of each expert lies, and the manifest that says so (FORMAT.md).

Everything but the checksums follows from the checkpoint's index, so that a manifest is compared, not interpreted.
Knows offsets and JSON; refuses to know files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from livingkv.experts.index import ExpertIndex, LayerIndex
from livingkv.experts.keys import ExpertKey
from livingkv.experts.layout import BLOCK_BYTES, arranged, residues_of, rounded

MAGIC = "livingkv experts pack"
LAYOUT = 1
MANIFEST, BLOCKS = "manifest.json", "experts.bin"


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """The blocks of one layer. `layer` says where each part lies in the pack; ends[e]: the end of expert e's last."""

    layer: LayerIndex
    first_byte: int
    block_bytes: int
    ends: tuple[int, ...]
    residues: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackLayout:
    """All blocks of a pack."""

    layers: tuple[PackedLayer, ...]
    size_bytes: int

    def start(self, key: ExpertKey) -> int:
        """Where an expert's block begins."""
        return self.layers[key.layer].first_byte + key.expert * self.layers[key.layer].block_bytes

    def end(self, key: ExpertKey) -> int:
        """The length of an expert in its block: what its checksum covers."""
        return self.layers[key.layer].ends[key.expert]


def layout_of(index: ExpertIndex) -> PackLayout:
    """The layout of a pack of that checkpoint. Takes some microseconds for each expert."""
    first_byte = 0
    layers = []
    for layer in index.layers:
        layers.append(_packed(layer, first_byte))
        first_byte += layers[-1].block_bytes * layer.n_experts
    return PackLayout(tuple(layers), first_byte)


def _packed(layer: LayerIndex, first_byte: int) -> PackedLayer:
    offsets = np.zeros_like(layer.offsets)
    ends: list[int] = []
    first_residues: tuple[int, ...] = ()
    for expert in range(layer.n_experts):
        files, places = layer.files[expert].tolist(), layer.offsets[expert].tolist()
        source = [(files[p], places[p], part.n_bytes) for p, part in enumerate(layer.parts)]
        residues = residues_of(layer.slots, source, expert)
        if expert == 0:
            first_residues = tuple(residues)
        slot_offsets = arranged(layer.parts, layer.slots, source, residues).slot_offsets
        for slot, at in zip(layer.slots, slot_offsets, strict=True):
            for part in slot.parts:
                offsets[expert, part] = at
                at += layer.parts[part].n_bytes
        ends.append(slot_offsets[-1] + layer.slots[-1].n_bytes)
    block_bytes = rounded(max(ends), BLOCK_BYTES)
    offsets += first_byte + block_bytes * np.arange(layer.n_experts, dtype=np.int64)[:, None]
    packed = LayerIndex(layer.module, layer.n_experts, layer.parts, layer.slots, np.zeros_like(layer.files), offsets)
    return PackedLayer(packed, first_byte, block_bytes, tuple(ends), first_residues)


def begun(index: ExpertIndex, layout: PackLayout) -> dict[str, Any]:
    """A manifest without checksums and digest."""
    files = [
        [file.path.name, file.mark.size_bytes, file.mark.mtime_ns, file.mark.header_digest]
        for file in index.checkpoint.files
    ]
    return {
        "magic": MAGIC,
        "layout": LAYOUT,
        "source": {"fingerprint": index.checkpoint.fingerprint, "files": files},
        "blocks": {"file": BLOCKS, "size_bytes": layout.size_bytes},
        "layers": [_layer_json(packed) for packed in layout.layers],
    }


def with_checksums(manifest: dict[str, Any], layout: PackLayout, checksums: list[int]) -> bytes:
    """The bytes of manifest.json. checksums: of every expert, in order."""
    left = iter(checksums)
    for entry, packed in zip(manifest["layers"], layout.layers, strict=True):
        entry["checksums"] = "".join(f"{next(left):016x}" for _ in range(packed.layer.n_experts))
    return canonical(manifest | {"digest": digest(manifest)})


def canonical(manifest: dict[str, Any]) -> bytes:
    """The JSON that digests are made of."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def digest(manifest: dict[str, Any]) -> str:
    """Of a manifest without its digest."""
    return xxhash.xxh3_128_hexdigest(canonical(manifest))


def _layer_json(packed: PackedLayer) -> dict[str, Any]:
    layer = packed.layer
    return {
        "module": layer.module,
        "n_experts": layer.n_experts,
        "first_byte": packed.first_byte,
        "block_bytes": packed.block_bytes,
        "parts": [[*part.name, part.dtype, list(part.shape), part.n_bytes, part.is_stacked] for part in layer.parts],
        "residues": list(packed.residues),
    }
