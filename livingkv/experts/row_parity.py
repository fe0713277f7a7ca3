"""Rows read a second time by another path, to be compared: one at a time, through the page cache, by names.

Shares no code with the reader that it controls: not the parsed headers, not the places, not the open files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from livingkv.errors import ExpertReadError
from livingkv.experts.row_table import Ids, Rows
from livingkv.regular_files import reading


class PlainRows:
    """The rows of stored tensors. Each column is stored as some tensors, (file, name), one after the other."""

    def __init__(self, *columns: Sequence[tuple[Path, str]]) -> None:
        self._columns = columns

    def read(self, ids: Ids) -> Rows:
        """The bytes of those rows as the files hold them at this moment. Raises ExpertReadError."""
        if not ids.size:
            return np.empty((0, 0), np.uint8)
        return np.concatenate([self._column(tensors, ids) for tensors in self._columns], axis=1)

    def _column(self, tensors: Sequence[tuple[Path, str]], ids: Ids) -> Rows:
        found: dict[int, bytes] = {}
        first = 0
        for path, name in tensors:
            try:
                first += self._add(path, name, first, ids, found)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ExpertReadError(f"{name} cannot be read again ({error})", path=str(path), offset=0) from error
        lacking = [row for row in ids.tolist() if row not in found]
        if lacking:
            path, name = tensors[-1]
            raise ExpertReadError(f"{name} lacks row {lacking[0]} when it is read again", path=str(path), offset=0)
        return np.frombuffer(b"".join(found[row] for row in ids.tolist()), np.uint8).reshape(len(ids), -1)

    @staticmethod
    def _add(path: Path, name: str, first: int, ids: Ids, found: dict[int, bytes]) -> int:
        """Add what one tensor holds of the rows. Answers how many rows it has."""
        with reading(path) as file:
            n_header = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(n_header))[name]
            start, end = entry["data_offsets"]
            n_rows = int(entry["shape"][0])
            n_bytes = (end - start) // n_rows
            for row in ids[(ids >= first) & (ids < first + n_rows)].tolist():
                file.seek(8 + n_header + start + (row - first) * n_bytes)
                found[row] = file.read(n_bytes)
        return n_rows
