"""How fast a tier has been lately, as one number.

Knows bytes and seconds; knows nothing of what was read.
"""

from __future__ import annotations

import threading

_MEMORY_BYTES = 1 << 26
"""What was read longer than about this many bytes ago hardly counts."""


class Bandwidth:
    """Bytes per second over the newest reads, each weighted by its size. Threads may share it.

    Reads side by side are counted each with its own time, so what one of them gets is what is answered.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0.0
        self._seconds = 0.0

    def add(self, n_bytes: int, seconds: float) -> None:
        """One read that was made."""
        with self._lock:
            kept = max(0.0, 1.0 - n_bytes / _MEMORY_BYTES)
            self._bytes = self._bytes * kept + n_bytes
            self._seconds = self._seconds * kept + seconds

    def seconds_for(self, n_bytes: int) -> float | None:
        """How long a read of so many bytes would take, or None when nothing was read yet."""
        with self._lock:
            return n_bytes * self._seconds / self._bytes if self._bytes else None
