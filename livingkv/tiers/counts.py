"""What the tiers did, as numbers for stats and tests.

Knows no tier.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from livingkv.tiers.ram_entry import RamCounts


@dataclass(frozen=True, slots=True)
class LowerCounts:
    """Reads from one tier below RAM. `seconds` adds up reads side by side; bytes are those of the records."""

    name: str
    n_pages: int = 0
    n_bytes: int = 0
    n_absent: int = 0
    n_damaged: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TierCounts:
    """All tiers, from the fastest down."""

    ram: RamCounts
    lower: tuple[LowerCounts, ...]


class LowerMeter:
    """Counts the reads of one tier. Threads may share it."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._counts = LowerCounts(name)

    def add(self, *, n_pages: int, n_bytes: int, n_absent: int, n_damaged: int, seconds: float) -> None:
        """One read."""
        with self._lock:
            old = self._counts
            self._counts = LowerCounts(
                old.name,
                old.n_pages + n_pages,
                old.n_bytes + n_bytes,
                old.n_absent + n_absent,
                old.n_damaged + n_damaged,
                old.seconds + seconds,
            )

    def counts(self) -> LowerCounts:
        """The sums so far."""
        return self._counts
