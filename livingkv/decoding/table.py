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
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def write(self, tokens: Sequence[int], rows: Sequence[OneToken], n_rows: int) -> None:
        """Tell the device of these rows; rows up to `n_rows` are filled up with one that reads nothing of anybody.
        Queued on the current stream. Waits only where the write before has not been copied yet."""
        if self._copied is not None:
            self._copied.synchronize()
        idle = OneToken(self.anchor, 0, 0, ((1, 0),), 1.0)
        self.rows = (*rows, *[idle] * (n_rows - len(rows)))
        numbers = [self._fields(row, token) for row, token in zip(self.rows, (*tokens, *[0] * n_rows), strict=False)]
        self._host[:n_rows] = torch.tensor(numbers, dtype=torch.int64)
        self.device[:n_rows].copy_(self._host[:n_rows], non_blocking=True)
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

    def _fields(self, row: OneToken, token: int) -> list[int]:
        space, anchor = row.space, self.anchor
        assert len(row.runs) <= MAX_RUNS and space.keys.shape[:2] == anchor.keys.shape[:2]
        idle = [row.runs[-1]] * (MAX_RUNS - len(row.runs))
        runs = (*row.runs, *idle)
        return [
            _distance(space.keys, anchor.keys),
            _distance(space.values, anchor.values),
            space.capacity,
            row.start,
            row.end,
            token,
            struct.unpack("<q", struct.pack("<d", row.factor))[0],
            *(hi for hi, _ in runs),
            *(position for _, position in runs),
            *[0] * (N_FIELDS - POSITION - MAX_RUNS),
        ]


def _distance(buffer: Tensor, anchor: Tensor) -> int:
    """In elements."""
    distance, rest = divmod(buffer.data_ptr() - anchor.data_ptr(), buffer.element_size())
    assert rest == 0 and buffer.is_contiguous()
    return distance
