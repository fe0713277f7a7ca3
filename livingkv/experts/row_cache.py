"""Rows of a table that were used lately, within a budget of bytes.

Knows rows by number; refuses to know where they come from. Used by one thread.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from livingkv.experts.row_table import Ids, Rows


class Split(NamedTuple):
    """Positions of ids that the cache holds, their rows' slots in it, and positions of the others."""

    found: Ids
    slots: Ids
    missing: Ids


class RowCache:
    """At most `budget_bytes` of rows; those used longest ago go first. Less than a row's bytes: it keeps none."""

    def __init__(self, row_bytes: int, budget_bytes: int) -> None:
        self._rows: Rows = np.empty((budget_bytes // row_bytes, row_bytes), np.uint8)
        self._slots: OrderedDict[int, int] = OrderedDict()

    @property
    def n_bytes(self) -> int:
        """The bytes that it takes when it is full."""
        return self._rows.nbytes

    def split(self, ids: Ids) -> Split:
        """Which of the rows are here."""
        found, slots, missing = [], [], []
        for position, row in enumerate(ids.tolist()):
            slot = self._slots.get(row)
            if slot is None:
                missing.append(position)
            else:
                found.append(position)
                slots.append(slot)
                self._slots.move_to_end(row)
        return Split(*(np.array(values, np.int64) for values in (found, slots, missing)))

    def rows(self, slots: Ids) -> Rows:
        """A copy of the rows in those slots."""
        return self._rows[slots]

    def keep(self, ids: Ids, rows: Rows) -> None:
        """Keep rows that are not here yet; of too many, the last."""
        n_kept = min(len(ids), len(self._rows))
        if not n_kept:
            return
        slots = []
        for row in ids[-n_kept:].tolist():
            is_full = len(self._slots) == len(self._rows)
            slot = self._slots.popitem(last=False)[1] if is_full else len(self._slots)
            self._slots[row] = slot
            slots.append(slot)
        self._rows[slots] = rows[-n_kept:]

    def clear(self) -> None:
        """Forget all rows."""
        self._slots.clear()
