"""What a decode step is told of its rows, in one small tensor on the device: a recorded step reads it anew each time.

Knows rows of one token each and where their workspaces' buffers lie; knows no network. A row is numbers: where its keys
and values are, which of its slots are attended, by which query, and the token. Buffers are told as distances from an
anchor, in elements, because a kernel loads in wide pieces only from pointers whose alignment it was compiled for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from livingkv.workspace import OneToken, Workspace

MAX_RUNS = 8
"""Runs of slots with a query of their own in one row. Dual-chunk positions of a session have three at most; passages
recalled from all over a store may have more, and then the step is not taken."""

KEYS, VALUES, CAPACITY, START, END, TOKEN, FACTOR, HI = 0, 1, 2, 3, 4, 5, 6, 7
POSITION = HI + MAX_RUNS
N_FIELDS = POSITION + MAX_RUNS + 1  # even, so that rows are aligned to 16 bytes
_ROW = struct.Struct(f"={FACTOR}qd{N_FIELDS - HI}q")


class Angles(NamedTuple):
    """cos and sin of every run's query position, fp32 [rows, MAX_RUNS, rotary_dim / 2]. The last is the token's own."""

    cos: Tensor
    sin: Tensor


class Table:
    """int64 [max_rows, N_FIELDS] on the device and its pinned twin on the host. `rows`: what was written last, until
    it is forgotten."""

    def __init__(self, anchor: Workspace, max_rows: int, frequencies: Tensor) -> None:
        device = anchor.keys.device
        self.anchor = anchor
        self.device = torch.zeros((max_rows, N_FIELDS), dtype=torch.int64, device=device)
        self.rows: tuple[OneToken, ...] = ()
        self._frequencies = frequencies.to(device)  # fp64, the device's own copy
        self._host = torch.zeros((max_rows, N_FIELDS), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._bytes = self._host.numpy().data.cast("B")
        self._anchored = anchor.keys.data_ptr(), anchor.values.data_ptr(), anchor.keys.element_size()
        self._idle = OneToken(anchor, 0, 0, ((1, 0),), 1.0)
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def write(self, tokens: Sequence[int], rows: Sequence[OneToken], n_rows: int) -> None:
        """Tell the device of these rows; rows up to `n_rows` are filled up with one that reads nothing of anybody.
        Queued on the current stream. Waits only where the write before has not been copied yet."""
        if self._copied is not None:
            self._copied.synchronize()
        n_idle = n_rows - len(rows)
        self.rows = (*rows, *[self._idle] * n_idle)
        for index, (row, token) in enumerate(zip(self.rows, (*tokens, *[0] * n_idle), strict=True)):
            self._write_row(index, row, token)
        self.device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def forget(self) -> None:
        """The rows' workspaces are not held any longer."""
        self.rows = ()

    def tokens(self, n_rows: int) -> Tensor:
        """int64 [rows]."""
        return self.device[:n_rows, TOKEN]

    def factors(self, n_rows: int) -> Tensor:
        """fp32 [rows]: what scores are multiplied with besides the layer's own scale."""
        return self.device[:n_rows, FACTOR].contiguous().view(torch.float64).float()

    def angles(self, n_rows: int) -> Angles:
        """From fp64 angles, as `positions.rotation`."""
        positions = self.device[:n_rows, POSITION : POSITION + MAX_RUNS].double()
        angles = positions[:, :, None] * self._frequencies
        return Angles(angles.cos().float(), angles.sin().float())

    def _write_row(self, index: int, row: OneToken, token: int) -> None:
        keys, values = row.space.keys, row.space.values
        assert len(row.runs) <= MAX_RUNS and keys.is_contiguous() and values.is_contiguous()
        to_keys, to_values, size = self._anchored
        to_keys, to_values = keys.data_ptr() - to_keys, values.data_ptr() - to_values
        assert to_keys % size == to_values % size == 0
        ends, positions = zip(*row.runs, *[row.runs[-1]] * (MAX_RUNS - len(row.runs)), strict=True)
        _ROW.pack_into(
            self._bytes,
            index * _ROW.size,
            to_keys // size,
            to_values // size,
            row.space.capacity,
            row.start,
            row.end,
            token,
            row.factor,
            *ends,
            *positions,
            0,
        )
