"""Rows that are read before the forward pass that needs them, and checked when they are taken.

`stage` begins to read, `take` gives. What was staged is given once, and only to who asks for the same rows in the same
order; anything else raises. There is no other way to rows: none is read because it was not staged.
Used by one thread, that of the model. Knows rows and tensors; refuses to know networks.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
import xxhash
from torch import Tensor

from livingkv.device_numbers import sent
from livingkv.device_queue import Fence
from livingkv.errors import CheckpointChanged, ExpertReadError, StagedRowsError
from livingkv.experts.checkpoint import Checkpoint
from livingkv.experts.formats import TORCH_TYPES
from livingkv.experts.row_cache import RowCache
from livingkv.experts.row_codes import decoded_rows
from livingkv.experts.row_reader import RowRead, RowReader
from livingkv.experts.row_table import Ids, Rows, RowTable
from livingkv.tiers.arena import Register

Reread = Callable[[Ids], Rows]
"""Reads rows by another path."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """n_asked: with repetitions. n_read: from files. n_compared, n_different: in parity mode."""

    n_stages: int = 0
    n_asked: int = 0
    n_read: int = 0
    n_cached: int = 0
    n_compared: int = 0
    n_different: int = 0


class RowDevice(Protocol):
    """Where rows are used."""

    def copied(self, rows: Tensor) -> tuple[Tensor, Fence | None]:
        """The rows on the device, and what tells when `rows` may be overwritten; None: at once, when they were used."""


class HostRows:
    """The RowDevice that is the CPU: rows are used where they are."""

    def copied(self, rows: Tensor) -> tuple[Tensor, Fence | None]:
        """See RowDevice."""
        return rows, None


class _Staged(NamedTuple):
    """What was asked for: the shape and digest of the ids, each id once, and its place among those for every id."""

    shape: tuple[int, ...]
    digest: bytes
    unique: Ids
    inverse: Ids
    missing: Ids
    read: RowRead


class RowStage:
    """The rows of one table on their way into one network.

    dtype: what rows are given in. register: pins the buffer for a device. reread: parity mode compares with that.
    """

    def __init__(
        self,
        table: RowTable,
        reader: RowReader,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        cache_bytes: int,
        device: RowDevice | None = None,
        register: Register | None = None,
        reread: Reread | None = None,
    ) -> None:
        self.table = table
        self._reader = reader
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._cache = RowCache(table.row_bytes, cache_bytes)
        self._device: RowDevice = device or HostRows()
        self._register = register
        self._unregister: Callable[[], None] | None = None
        self._reread = reread
        self._buffer: Rows = np.empty((0, table.row_bytes), np.uint8)
        self._staged: _Staged | None = None
        self._fence: Fence | None = None
        self._counts = RowCounts()

    def counts(self) -> RowCounts:
        """What was staged and read so far."""
        return self._counts

    def stage(self, ids: Tensor) -> None:
        """Begin to read rows `ids`, whole numbers of any shape. Waits only for a copy of the rows staged before.

        What was staged before and not taken is given up. Raises InputError for a row that the table does not have,
        CheckpointChanged where its files are not those that were indexed.
        """
        self._give_up()
        flat = ids.detach().cpu().to(torch.int64).numpy().reshape(-1)
        self.table.require(flat)
        self._require_unchanged()
        unique, inverse = np.unique(flat, return_inverse=True)
        self._make_room(len(unique))
        found, slots, missing = self._cache.split(unique)
        self._buffer[found] = self._cache.rows(slots)
        read = self._reader.begin(self.table, unique[missing], self._buffer, missing)
        self._staged = _Staged(tuple(ids.shape), _digest(flat), unique, inverse.reshape(-1), missing, read)
        then = self._counts
        self._counts = replace(
            then,
            n_stages=then.n_stages + 1,
            n_asked=then.n_asked + len(flat),
            n_read=then.n_read + len(missing),
            n_cached=then.n_cached + len(found),
        )

    def take(self, ids: Tensor) -> Tensor:
        """The staged rows, [*ids.shape, width], in memory of their own. Waits until they are there.

        Raises StagedRowsError where nothing is staged, or rows of other ids; ExpertReadError where rows cannot be
        read, or differ in parity mode. Whatever it raises, nothing is staged after it.
        """
        staged, self._staged = self._staged, None
        if staged is None:
            raise StagedRowsError(f"{self.table.name}: no rows are staged for this pass")
        try:
            staged.read.wait()
        except CheckpointChanged:
            self._cache.clear()
            raise
        flat = ids.detach().cpu().to(torch.int64).numpy().reshape(-1)
        if tuple(ids.shape) != staged.shape or _digest(flat) != staged.digest:
            what = f"{staged.shape} rows were staged, and {tuple(ids.shape)} others are taken"
            raise StagedRowsError(f"{self.table.name}: the rows that are staged belong to other tokens ({what})")
        rows = self._buffer[: len(staged.unique)]
        if self._reread is not None:
            self._compare(staged.unique, rows, self._reread)
        self._cache.keep(staged.unique[staged.missing], rows[staged.missing])
        on_device, self._fence = self._device.copied(torch.from_numpy(rows))
        inverse = sent(torch.from_numpy(staged.inverse), on_device.device)
        return self._decoded(on_device.index_select(0, inverse)).view(*ids.shape, self.table.values.width)

    def close(self) -> None:
        """Wait for what is under way and give the buffer back. The reader is closed by who made it."""
        self._give_up()
        if self._unregister is not None:
            self._unregister()
            self._unregister = None
        self._buffer = np.empty((0, self.table.row_bytes), np.uint8)
        self._cache.clear()

    def _give_up(self) -> None:
        staged, self._staged = self._staged, None
        if staged is not None:
            staged.read.finish()
        fence, self._fence = self._fence, None
        if fence is not None:
            fence.wait()

    def _require_unchanged(self) -> None:
        """Rows of the cache, too, are only those of the files that are there now."""
        try:
            for file in self.table.files:
                self._checkpoint.require_unchanged(file, 0)
        except CheckpointChanged:
            self._cache.clear()
            raise

    def _make_room(self, n_rows: int) -> None:
        if n_rows <= len(self._buffer):
            return
        if self._unregister is not None:
            self._unregister()
            self._unregister = None
        n_rows = max(n_rows, 2 * len(self._buffer))  # pinning takes time, and longer passes come one after the other
        n_bytes = n_rows * self.table.row_bytes
        self._buffer = np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8).reshape(n_rows, -1)
        if self._register is not None:
            self._unregister = self._register(self._buffer.ctypes.data, n_bytes)

    def _compare(self, ids: Ids, rows: Rows, reread: Reread) -> None:
        if not len(ids):
            return
        different = (reread(ids) != rows).any(axis=1)
        n_different = int(different.sum())
        then = self._counts
        self._counts = replace(then, n_compared=then.n_compared + len(ids), n_different=then.n_different + n_different)
        if n_different:
            self._cache.clear()
            reason = f"{n_different} of {len(ids)} rows are not what the file holds, row {ids[different][0]} is one"
            raise ExpertReadError(f"{reason}; load the model again", path=self.table.name, offset=0)

    def _decoded(self, rows: Tensor) -> Tensor:
        """uint8 [n, bytes of a row] to numbers [n, width]. Scales are multiplied in fp32, as they are stored."""
        values, scales = self.table.values, self.table.scales
        if scales is None:
            return rows.view(TORCH_TYPES[values.dtype]).to(self._dtype)
        codes = rows[:, : values.row_bytes].contiguous().view(TORCH_TYPES[values.dtype])
        factors = rows[:, values.row_bytes :].contiguous().view(TORCH_TYPES[scales.dtype])
        return decoded_rows(codes, factors, scales.n_values).to(self._dtype)


def _digest(ids: Ids) -> bytes:
    return xxhash.xxh3_128_digest(np.ascontiguousarray(ids).tobytes())
