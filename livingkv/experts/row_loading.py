"""The tables of a model folder: found by headers, opened for reading, put in the place of what the network lost.

Knows which modules have tables and how they are stored; refuses to know how rows are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from livingkv.errors import ModelDamaged, UnsupportedModel
from livingkv.experts.checkpoint import Checkpoint
from livingkv.experts.codings import CODES, SCALES
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.lazy_weights import LazyTensor
from livingkv.experts.names import joined_tensors
from livingkv.experts.ngram_rows import BUFFERS, TABLE, attach, require_hashing, table_modules
from livingkv.experts.quantization import StoredAs
from livingkv.experts.row_parity import PlainRows, PlainTensor
from livingkv.experts.row_reader import N_THREADS, RowReader
from livingkv.experts.row_stage import RowCounts, RowDevice, RowStage
from livingkv.experts.row_table import RowColumn, RowTable, row_table


@dataclass(frozen=True, slots=True)
class RowSettings:
    """How tables are read. cache_bytes: for each table. parity: every row is read twice and compared, which is slow."""

    cache_bytes: int = 16 << 20
    n_threads: int = N_THREADS
    parity: bool = False


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table, the module that has it, and the names of what is stored of it, its values and its scales, and of the
    hashing of its tokens."""

    module: str
    table: RowTable
    values: tuple[str, ...]
    scales: tuple[str, ...]
    buffers: Mapping[str, str]

    @property
    def tensors(self) -> tuple[str, ...]:
        """All that is stored of it."""
        return self.values + self.scales


@dataclass(frozen=True, slots=True)
class OpenTables:
    """The tables of a network that is being used."""

    reader: RowReader
    stages: Mapping[str, RowStage]

    def counts(self) -> dict[str, RowCounts]:
        """What was staged and read, by the name of the module that has the table."""
        return {name: stage.counts() for name, stage in self.stages.items()}

    def close(self) -> None:
        """Wait for reads under way; give files and memory back. Once is enough, twice is fine."""
        for stage in self.stages.values():
            stage.close()
        self.reader.close()


def find_tables(checkpoint: Checkpoint, names: Mapping[str, StoredAs], bare: Any) -> tuple[FoundTable, ...]:
    """The tables of a network without memory, their headers checked. names: what is stored, sorted by matrix.

    Raises ModelDamaged, and UnsupportedModel for codes that are not read by row.
    """
    found = []
    for name, module in table_modules(bare).items():
        shape = getattr(module, TABLE).weight.shape
        tensors = joined_tensors(names, bare, f"{name}.{TABLE}.weight")
        scales = tuple(tensor for tensor in tensors if names[tensor].role == SCALES)
        values = tuple(tensor for tensor in tensors if names[tensor].role in ("", CODES))
        others = [tensor for tensor in tensors if tensor not in scales + values]
        if others:
            raise UnsupportedModel(f"{others[0]}: a table with a {names[others[0]].role} is not read by row")
        table = row_table(checkpoint, f"{name}.{TABLE}", values, scales, n_rows=shape[0], width=shape[1])
        buffers = {}
        for buffer in BUFFERS:
            stored = joined_tensors(names, bare, f"{name}.{buffer}")
            if len(stored) != 1:
                raise ModelDamaged(f"{name}.{buffer}: the checkpoint lacks it; fetch the model again")
            buffers[buffer] = stored[0]
        found.append(FoundTable(name, table, values, scales, buffers))
    return tuple(found)


def open_tables(
    checkpoint: Checkpoint, found: tuple[FoundTable, ...], network: Any, settings: RowSettings, dtype: torch.dtype
) -> OpenTables:
    """Open the tables and attach them to the network that was loaded without them. Raises ModelDamaged."""
    device = next(network.parameters()).device
    plain = CheckpointFiles(checkpoint, direct=False)  # what is not a table lies at any address
    try:
        for one in found:
            stored = {name: LazyTensor(plain, *checkpoint.tensors[of])[...] for name, of in one.buffers.items()}
            require_hashing(network, one.module, stored)
    finally:
        plain.close()
    with ExitStack() as undo:
        files = CheckpointFiles(checkpoint, direct=True)
        undo.callback(files.close)
        reader = RowReader(files, tuple(one.table for one in found), settings.n_threads)
        undo.pop_all()
        undo.callback(reader.close)
        stages = {one.module: _stage(checkpoint, one, reader, settings, dtype, device) for one in found}
        attach(network, stages)
        undo.pop_all()
    return OpenTables(reader, stages)


def _plain(checkpoint: Checkpoint, names: tuple[str, ...], column: RowColumn) -> list[PlainTensor]:
    """Where parity mode finds the tensors of a column."""
    return [
        PlainTensor(checkpoint.files[checkpoint.tensors[name].file].path, name, part.n_rows, part.n_sharing)
        for name, part in zip(names, column.parts, strict=True)
    ]


def _stage(
    checkpoint: Checkpoint,
    found: FoundTable,
    reader: RowReader,
    settings: RowSettings,
    dtype: torch.dtype,
    device: torch.device,
) -> RowStage:
    reread = None
    if settings.parity:
        columns = zip((found.values, found.scales), found.table.columns, strict=False)
        reread = PlainRows(*(_plain(checkpoint, names, column) for names, column in columns)).read
    on_device: RowDevice | None = None
    register = None
    if device.type == "cuda":
        from livingkv.experts.row_cuda import CudaRows
        from livingkv.tiers.pinning import pin_for_cuda

        on_device, register = CudaRows(device), pin_for_cuda
    return RowStage(
        found.table,
        reader,
        checkpoint,
        dtype=dtype,
        cache_bytes=settings.cache_bytes,
        device=on_device,
        register=register,
        reread=reread,
    )
