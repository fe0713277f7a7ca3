"""Where the parts of an expert come to lie in memory: a row, with one slot for each tensor that is computed with.

A row is laid out in one of two ways. Arranged: every slot begins where it should, whatever the file looks like, and
parts that the network joins (gate and up) lie side by side. In place: the row is a copy of the file's blocks, which
needs no copying after a direct read; possible where the file keeps side by side what is joined, at fitting addresses.
Where a slot should begin is not a matter of speed: a product over fp32 weights at another address modulo 64 differs in
its last bits (docs/decisions/0020). So each has a residue, that of the same weights in transformers' own network.
Knows lengths and offsets; refuses to know what the tensors mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from livingkv.experts.keys import PartName

BLOCK_BYTES = 4096
ALIGNMENT = 64
"""What torch aligns its own tensors to."""
CODED_ALIGNMENT = 4
"""What the widest scale, fp32, is aligned to."""


@dataclass(frozen=True, slots=True)
class PartSpec:
    """One part as every expert of a layer has it. `dtype` is safetensors' name of the type."""

    name: PartName
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    is_stacked: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor in a row: the pieces of one parameter joined along their first dimension. `parts` are their numbers.

    is_stacked: transformers stacks the experts' tensors in memory of its own; else it maps one tensor of all experts.
    is_coded: it is not computed with as it is, so its address matters only as far as its type does.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    parts: tuple[int, ...]
    is_stacked: bool
    is_coded: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of a file that are read at once: whole blocks around `[lo, hi)`, which hold parts.

    moves: (offset in the file, offset in the row, length) of each part. Where `direct_at` is given, the blocks
    themselves may be read to that offset of the row, and every part is then where it belongs.
    """

    file: int
    lo: int
    hi: int
    moves: tuple[tuple[int, int, int], ...]
    direct_at: int | None

    @property
    def block_lo(self) -> int:
        """The first byte of the first block."""
        return self.lo // BLOCK_BYTES * BLOCK_BYTES

    @property
    def block_hi(self) -> int:
        """The end of the last block, which may be past the end of the file."""
        return rounded(self.hi, BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class Placement:
    """How one expert comes into its row: what is read, and the offset of each slot."""

    runs: tuple[Run, ...]
    slot_offsets: tuple[int, ...]


def rounded(n_bytes: int, block: int) -> int:
    """The next multiple of `block`."""
    return -(-n_bytes // block) * block


def slots_of(parts: tuple[PartSpec, ...]) -> tuple[Slot, ...]:
    """The slots of a layer's rows. `parts` are sorted by name; pieces of one tensor differ in their first dimension."""
    slots = []
    for tensor, group in groupby(range(len(parts)), key=lambda number: parts[number].name.slot):
        numbers = tuple(group)
        first = parts[numbers[0]]
        shape = first.shape
        if len(numbers) > 1:
            shape = (sum(parts[number].shape[0] for number in numbers), *first.shape[1:])
        n_bytes = sum(parts[number].n_bytes for number in numbers)
        slots.append(Slot(tensor, first.dtype, shape, n_bytes, numbers, first.is_stacked, first.name.role != ""))
    return tuple(slots)


def runs_of(places: list[tuple[int, int, int]]) -> list[list[int]]:
    """Parts, given as (file, offset, length), put together where they follow one another within a block."""
    runs: list[list[int]] = []
    for number in sorted(range(len(places)), key=lambda number: places[number]):
        file, offset, _ = places[number]
        if runs:
            last_file, last_offset, last_length = places[runs[-1][-1]]
            if file == last_file and offset - (last_offset + last_length) < BLOCK_BYTES:
                runs[-1].append(number)
                continue
        runs.append([number])
    return runs


def residues_of(slots: tuple[Slot, ...], places: list[tuple[int, int, int]], expert: int) -> list[int]:
    """Addresses modulo ALIGNMENT that the slots of an expert have in transformers' network; 0 for coded ones."""
    return [
        0 if slot.is_coded else (expert * slot.n_bytes if slot.is_stacked else places[slot.parts[0]][1]) % ALIGNMENT
        for slot in slots
    ]


def arranged(
    parts: tuple[PartSpec, ...], slots: tuple[Slot, ...], places: list[tuple[int, int, int]], residues: list[int]
) -> Placement:
    """The placement that fits every file: slots in order, each at its residue."""
    offsets: list[int] = []
    targets: dict[int, int] = {}
    end = 0
    for slot, residue in zip(slots, residues, strict=True):
        end += (residue - end) % ALIGNMENT
        offsets.append(end)
        for number in slot.parts:
            targets[number] = end
            end += parts[number].n_bytes
    runs = []
    for group in runs_of(places):
        moves = tuple((places[number][1], targets[number], places[number][2]) for number in group)
        runs.append(_run(places, group, moves, None))
    return Placement(tuple(runs), tuple(offsets))


def in_place(
    slots: tuple[Slot, ...], places: list[tuple[int, int, int]], residues: list[int] | None
) -> Placement | None:
    """The placement that copies the file's blocks as they are, or None where the file does not allow it.

    residues: None where any address is right.
    """
    targets: dict[int, int] = {}
    runs = []
    end = 0
    for group in runs_of(places):
        first = places[group[0]][1] // BLOCK_BYTES * BLOCK_BYTES
        for number in group:
            targets[number] = end + places[number][1] - first
        moves = tuple((places[number][1], targets[number], places[number][2]) for number in group)
        runs.append(_run(places, group, moves, end))
        end += runs[-1].block_hi - runs[-1].block_lo
    for number, slot in enumerate(slots):
        starts = [targets[part] for part in slot.parts]
        ends = [targets[part] + places[part][2] for part in slot.parts]
        if starts[1:] != ends[:-1]:
            return None
        if slot.is_coded and starts[0] % CODED_ALIGNMENT:
            return None
        if not slot.is_coded and residues is not None and starts[0] % ALIGNMENT != residues[number]:
            return None
    return Placement(tuple(runs), tuple(targets[slot.parts[0]] for slot in slots))


def _run(
    places: list[tuple[int, int, int]], group: list[int], moves: tuple[tuple[int, int, int], ...], direct_at: int | None
) -> Run:
    file, lo, _ = places[group[0]]
    return Run(file, lo, max(places[number][1] + places[number][2] for number in group), moves, direct_at)
