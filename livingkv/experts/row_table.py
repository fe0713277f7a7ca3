"""A table of rows in a checkpoint: which bytes of which file a row is.

For embedding tables larger than memory, of which a token needs a few rows: n-gram tables (qwen4_exp), Engram. A table
is one stored tensor or several, one after the other; its rows may have scales, stored as a table of their own.
Knows headers and offsets; refuses to know how rows are read and what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from livingkv.errors import InputError, ModelDamaged, UnsupportedModel
from livingkv.experts.checkpoint import Checkpoint
from livingkv.experts.formats import TORCH_TYPES
from livingkv.experts.row_codes import require_types, sharing_of

Ids = NDArray[np.int64]
Rows = NDArray[np.uint8]  # [rows, bytes of a row]


class RowPart(NamedTuple):
    """One stored tensor: rows `[first_row, first_row + n_rows)`, from byte `offset` of a file on. n_sharing: so many
    rows have the same bytes of it, which are stored once."""

    file: int
    offset: int
    first_row: int
    n_rows: int
    n_sharing: int = 1


class RowPlaces(NamedTuple):
    """Where rows are: for each the number of a file and the offset of its first byte."""

    files: Ids
    offsets: Ids


@dataclass(frozen=True)
class RowColumn:
    """What every row has so many numbers of: its values, or its scales. `dtype` is safetensors' name of the type.
    n_values: of scales, for how many neighbouring values one is."""

    dtype: str
    width: int
    row_bytes: int
    parts: tuple[RowPart, ...]
    n_values: int = 1

    @cached_property
    def _bounds(self) -> tuple[Ids, Ids, Ids, Ids]:
        columns = np.array(self.parts, np.int64).reshape(len(self.parts), 5)
        return columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 4]

    def places(self, ids: Ids) -> RowPlaces:
        """Where those rows are."""
        files, offsets, first_rows, n_sharing = self._bounds
        part = np.searchsorted(first_rows, ids, side="right") - 1
        number = (ids - first_rows[part]) // n_sharing[part]
        return RowPlaces(files[part], offsets[part] + number * self.row_bytes)


@dataclass(frozen=True)
class RowTable:
    """A table. A row's bytes are those of its values, then those of its scales, where it has some."""

    name: str
    n_rows: int
    values: RowColumn
    scales: RowColumn | None

    @property
    def columns(self) -> tuple[RowColumn, ...]:
        """Values, and scales where there are some."""
        return (self.values,) if self.scales is None else (self.values, self.scales)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row with its scales."""
        return sum(column.row_bytes for column in self.columns)

    @property
    def files(self) -> tuple[int, ...]:
        """The numbers of the files that hold it."""
        return tuple(sorted({part.file for column in self.columns for part in column.parts}))

    def require(self, ids: Ids) -> None:
        """Raise InputError for a row that the table does not have."""
        if ids.size and (ids.min() < 0 or ids.max() >= self.n_rows):
            wrong = ids[(ids < 0) | (ids >= self.n_rows)][0]
            raise InputError("row", int(wrong), f"{self.name} has rows 0 to {self.n_rows - 1}")


def row_table(
    checkpoint: Checkpoint, name: str, values: Sequence[str], scales: Sequence[str] = (), *, n_rows: int, width: int
) -> RowTable:
    """The table made of those stored tensors, in that order, with its headers checked. Nothing else is read.

    Each tensor of scales belongs to one of values, in the same order, as `sharing_of` says. Raises ModelDamaged where
    rows or scales are missing or misshapen, UnsupportedModel for types that are not read by row.
    """
    found = _column(checkpoint, name, values, n_rows)
    if found.width != width:
        raise ModelDamaged(f"{name}: its rows have {found.width} numbers, the network needs {width}")
    scaling = _scales(checkpoint, name, scales, found) if scales else None
    require_types(name, found.dtype, scaling.dtype if scaling else None)
    return RowTable(name, n_rows, found, scaling)


def _scales(checkpoint: Checkpoint, name: str, tensors: Sequence[str], values: RowColumn) -> RowColumn:
    if len(tensors) != len(values.parts):
        raise ModelDamaged(
            f"{name}: {len(values.parts)} tensors of codes have {len(tensors)} of scales; fetch it again"
        )
    parts: list[RowPart] = []
    kind: tuple[str, int, int, int] | None = None
    for tensor, of in zip(tensors, values.parts, strict=True):
        if tensor not in checkpoint.tensors:
            raise ModelDamaged(f"{name}: the checkpoint lacks {tensor}; fetch the model again")
        file, stored = checkpoint.tensors[tensor]
        sharing = sharing_of(tensor, of.n_rows, values.width, stored.shape)
        n_entries = -(-of.n_rows // sharing.n_rows)
        here = (stored.dtype, -(-values.width // sharing.n_values), stored.n_bytes // n_entries, sharing.n_values)
        if kind is not None and here != kind:
            raise ModelDamaged(
                f"{tensor}: it has {here[1]} scales of {here[0]}, those before it {kind[1]} of {kind[0]}"
            )
        kind = here
        parts.append(RowPart(file, stored.offset, of.first_row, of.n_rows, sharing.n_rows))
    assert kind is not None
    dtype, width, row_bytes, n_values = kind
    return RowColumn(dtype, width, row_bytes, tuple(parts), n_values)


def _column(checkpoint: Checkpoint, name: str, tensors: Sequence[str], n_rows: int) -> RowColumn:
    parts: list[RowPart] = []
    kind: tuple[str, int, int] | None = None
    first_row = 0
    for tensor in tensors:
        if tensor not in checkpoint.tensors:
            raise ModelDamaged(f"{name}: the checkpoint lacks {tensor}; fetch the model again")
        file, stored = checkpoint.tensors[tensor]
        if not 1 <= len(stored.shape) <= 2 or not stored.shape[0]:
            raise ModelDamaged(f"{tensor}: its shape is {stored.shape}, which is no table of rows")
        width = stored.shape[1] if len(stored.shape) == 2 else 1
        here = (stored.dtype, width, stored.n_bytes // stored.shape[0])
        if kind is not None and here != kind:
            raise ModelDamaged(f"{tensor}: its rows are {here[1]} of {here[0]}, those before it {kind[1]} of {kind[0]}")
        kind = here
        parts.append(RowPart(file, stored.offset, first_row, stored.shape[0]))
        first_row += stored.shape[0]
    if kind is None or first_row != n_rows:
        raise ModelDamaged(f"{name}: the checkpoint holds {first_row} rows of it, the network needs {n_rows}")
    dtype, width, row_bytes = kind
    if dtype not in TORCH_TYPES:
        raise UnsupportedModel(f"{name}: its type {dtype} cannot be read by row")
    return RowColumn(dtype, width, row_bytes, tuple(parts))
