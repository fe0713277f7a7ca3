"""`ExpertIndex`: for every expert of a checkpoint, which bytes of which files it is.

Built from headers alone; nothing of the checkpoint is copied or changed. Knows files, parts and rows; refuses to know
how bytes are read and how tensors are computed with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from livingkv.errors import ModelDamaged
from livingkv.experts.checkpoint import Checkpoint
from livingkv.experts.keys import ExpertKey, PartName
from livingkv.experts.layout import (
    BLOCK_BYTES,
    PartSpec,
    Placement,
    Slot,
    arranged,
    in_place,
    residues_of,
    rounded,
    slots_of,
)
from livingkv.experts.names import ExpertTensor
from livingkv.experts.skeleton import ExpertModule

FEW_READS = 2.0
"""With more reads than this for an expert, packing pays."""


@dataclass(frozen=True, slots=True)
class LayerIndex:
    """The experts of one layer. Part `p` of expert `e` begins at byte `offsets[e, p]` of file `files[e, p]`."""

    module: str
    n_experts: int
    parts: tuple[PartSpec, ...]
    slots: tuple[Slot, ...]
    files: NDArray[np.int32]  # [experts, parts]
    offsets: NDArray[np.int64]  # [experts, parts]


class IndexReport(NamedTuple):
    """What reading the experts costs. `padding_share`: of the bytes that are read, those that no expert needs."""

    n_layers: int
    n_experts: int
    expert_bytes: int
    row_bytes: int
    reads_per_expert: float
    padding_share: float
    in_place_share: float
    pack_pays: bool


class ExpertIndex:
    """All experts of one checkpoint. `layers` are in the order of the network.

    for_device: rows are copied to a device, so that their own addresses do not matter.
    """

    def __init__(self, checkpoint: Checkpoint, layers: tuple[LayerIndex, ...], *, for_device: bool = False) -> None:
        self.checkpoint = checkpoint
        self.layers = layers
        self._for_device = for_device
        self._placements: dict[ExpertKey, Placement] = {}
        self.row_bytes = rounded(max(self._needed(key) for key in self.experts()), BLOCK_BYTES)

    def experts(self) -> Iterator[ExpertKey]:
        """Every expert, layer by layer."""
        for number, layer in enumerate(self.layers):
            for expert in range(layer.n_experts):
                yield ExpertKey(number, expert)

    def placement(self, key: ExpertKey) -> Placement:
        """What is to be read for an expert, and where it goes in its row."""
        found = self._placements.get(key)
        if found is None:
            found = self._placements[key] = self._place(key)
        return found

    def name(self, key: ExpertKey) -> str:
        """What an expert is called in errors."""
        return f"{self.layers[key.layer].module}.{key.expert}"

    def part(self, key: ExpertKey, name: PartName) -> tuple[int, int, int]:
        """(file, offset, length) of one part. Raises KeyError for a part that the layer does not have."""
        layer = self.layers[key.layer]
        for number, spec in enumerate(layer.parts):
            if spec.name == name:
                return int(layer.files[key.expert, number]), int(layer.offsets[key.expert, number]), spec.n_bytes
        raise KeyError(name)

    def verify(self, key: ExpertKey, row: memoryview) -> None:
        """Called with every row that was read. Raises ExpertReadError where it is known not to be the expert.

        A checkpoint has no checksums: nothing is known here.
        """

    def expert_bytes(self, layer: int) -> int:
        """The bytes of one expert of a layer."""
        return sum(part.n_bytes for part in self.layers[layer].parts)

    def report(self) -> IndexReport:
        """The cost of reading, over all experts. Takes a few microseconds for each."""
        n_runs = n_read = n_needed = n_in_place = n_experts = 0
        for key in self.experts():
            runs = self._place(key).runs  # not remembered: most experts are never asked for again
            n_experts += 1
            n_runs += len(runs)
            n_read += sum(run.block_hi - run.block_lo for run in runs)
            n_needed += self.expert_bytes(key.layer)
            n_in_place += all(run.direct_at is not None for run in runs)
        reads = n_runs / n_experts
        sizes = [self.expert_bytes(number) for number in range(len(self.layers))]
        padding = 1 - n_needed / n_read
        share = n_in_place / n_experts
        return IndexReport(
            len(self.layers), n_experts, max(sizes), self.row_bytes, reads, padding, share, reads > FEW_READS
        )

    def _needed(self, key: ExpertKey) -> int:
        """The end of the last byte that is written in an expert's row."""
        placement, slots = self._place(key), self.layers[key.layer].slots
        blocks = [run.direct_at + run.block_hi - run.block_lo for run in placement.runs if run.direct_at is not None]
        ends = [offset + slot.n_bytes for offset, slot in zip(placement.slot_offsets, slots, strict=True)]
        return max(blocks + ends)

    def _place(self, key: ExpertKey) -> Placement:
        layer = self.layers[key.layer]
        places = self._places(layer, key.expert)
        residues = residues_of(layer.slots, places, key.expert)
        found = in_place(layer.slots, places, None if self._for_device else residues)
        return found or arranged(layer.parts, layer.slots, places, residues)

    @staticmethod
    def _places(layer: LayerIndex, expert: int) -> list[tuple[int, int, int]]:
        files, offsets = layer.files[expert].tolist(), layer.offsets[expert].tolist()
        return [(files[p], offsets[p], part.n_bytes) for p, part in enumerate(layer.parts)]


def build_index(
    checkpoint: Checkpoint,
    modules: list[ExpertModule],
    tensors: Mapping[str, ExpertTensor],
    *,
    for_device: bool = False,
) -> ExpertIndex:
    """The index of those tensors. Raises ModelDamaged where an expert is missing or differs in shape from others."""
    by_layer: list[dict[tuple[PartName, int | None], str]] = [{} for _ in modules]
    for name, found in tensors.items():
        place = (found.part, found.expert)
        if place in by_layer[found.layer]:
            raise ModelDamaged(f"{name}: the checkpoint also holds it as {by_layer[found.layer][place]}")
        by_layer[found.layer][place] = name
    layers = tuple(_layer(checkpoint, module, found) for module, found in zip(modules, by_layer, strict=True))
    return ExpertIndex(checkpoint, layers, for_device=for_device)


def _layer(
    checkpoint: Checkpoint, module: ExpertModule, names: Mapping[tuple[PartName, int | None], str]
) -> LayerIndex:
    part_names = sorted({part for part, _ in names})
    lacking = sorted(set(module.parameters) - {part.tensor for part in part_names})
    if lacking:
        raise ModelDamaged(f"{module.name}.{lacking[0]}: the checkpoint lacks it; fetch the model again")
    beyond = [name for (_, expert), name in names.items() if expert is not None and expert >= module.n_experts]
    if beyond:
        raise ModelDamaged(f"{beyond[0]}: the config says that this layer has {module.n_experts} experts")
    files = np.zeros((module.n_experts, len(part_names)), np.int32)
    offsets = np.zeros((module.n_experts, len(part_names)), np.int64)
    specs = []
    for column, part in enumerate(part_names):
        fused = names.get((part, None))
        if fused is not None:
            specs.append(_fused(checkpoint, module, part, fused, files[:, column], offsets[:, column]))
        else:
            specs.append(_single(checkpoint, module, part, names, files[:, column], offsets[:, column]))
    parts = tuple(specs)
    return LayerIndex(module.name, module.n_experts, parts, slots_of(parts), files, offsets)


def _fused(
    checkpoint: Checkpoint,
    module: ExpertModule,
    part: PartName,
    name: str,
    files: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> PartSpec:
    """A part of which one stored tensor holds all experts, one after the other."""
    file, tensor = checkpoint.tensors[name]
    if not tensor.shape or tensor.shape[0] != module.n_experts or tensor.n_bytes % module.n_experts:
        raise ModelDamaged(f"{name}: its shape is {tensor.shape}, which is not {module.n_experts} experts")
    n_bytes = tensor.n_bytes // module.n_experts
    files[:] = file
    offsets[:] = tensor.offset + n_bytes * np.arange(module.n_experts, dtype=np.int64)
    return PartSpec(part, tensor.dtype, tensor.shape[1:] or (1,), n_bytes, False)


def _single(
    checkpoint: Checkpoint,
    module: ExpertModule,
    part: PartName,
    names: Mapping[tuple[PartName, int | None], str],
    files: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> PartSpec:
    """A part of which every expert has a stored tensor of its own."""
    spec: PartSpec | None = None
    for expert in range(module.n_experts):
        name = names.get((part, expert))
        if name is None:
            raise ModelDamaged(f"{module.name}: expert {expert} has no {part.slot} in the checkpoint; fetch it again")
        files[expert], tensor = checkpoint.tensors[name]
        offsets[expert] = tensor.offset
        here = PartSpec(part, tensor.dtype, tensor.shape or (1,), tensor.n_bytes, True)
        if spec is not None and here != spec:
            raise ModelDamaged(f"{name}: it has another shape or type than those of the experts before it")
        spec = here
    assert spec is not None
    return spec
