"""Rows read a second time by another path, to be compared: one at a time, through the page cache, by names.

Shares no code with the reader that it controls: not the parsed headers, not the places, not the open files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from livingkv.errors import ExpertReadError
from livingkv.experts.row_table import Ids, Rows
from livingkv.regular_files import reading


class PlainTensor(NamedTuple):
    """A stored tensor of some rows, one after the other. n_rows: None for as many as it has; n_sharing: so many rows
    have the same bytes of it."""

    path: Path
    name: str
    n_rows: int | None = None
    n_sharing: int = 1


class PlainRows:
    """The rows of stored tensors. Each column is stored as some tensors, one after the other."""

    def __init__(self, *columns: Sequence[PlainTensor]) -> None:
        self._columns = columns

    def read(self, ids: Ids) -> Rows:
        """The bytes of those rows as the files hold them at this moment. Raises ExpertReadError."""
        if not ids.size:
            return np.empty((0, 0), np.uint8)
        return np.concatenate([self._column(tensors, ids) for tensors in self._columns], axis=1)

    def _column(self, tensors: Sequence[PlainTensor], ids: Ids) -> Rows:
        found: dict[int, bytes] = {}
        first = 0
        for one in tensors:
            try:
                first += self._add(one, first, ids, found)
            except (OSError, ValueError, KeyError, TypeError) as error:
                what = f"{one.name} cannot be read again ({error})"
                raise ExpertReadError(what, path=str(one.path), offset=0) from error
        lacking = [row for row in ids.tolist() if row not in found]
        if lacking:
            what = f"{tensors[-1].name} lacks row {lacking[0]} when it is read again"
            raise ExpertReadError(what, path=str(tensors[-1].path), offset=0)
        return np.frombuffer(b"".join(found[row] for row in ids.tolist()), np.uint8).reshape(len(ids), -1)

    @staticmethod
    def _add(tensor: PlainTensor, first: int, ids: Ids, found: dict[int, bytes]) -> int:
        """Add what one tensor holds of the rows. Answers how many rows it has."""
        with reading(tensor.path) as file:
            n_header = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(n_header))[tensor.name]
            start, end = entry["data_offsets"]
            n_stored = int(entry["shape"][0]) if entry["shape"] else 1
            n_rows = n_stored if tensor.n_rows is None else tensor.n_rows
            n_bytes = (end - start) // n_stored
            for row in ids[(ids >= first) & (ids < first + n_rows)].tolist():
                file.seek(8 + n_header + start + (row - first) // tensor.n_sharing * n_bytes)
                found[row] = file.read(n_bytes)
        return n_rows
