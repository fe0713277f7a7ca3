"""One page of the RAM tier, the right to use it, and what the tier counts.

Knows a page's states: awaited, there, failed. Knows no other page.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from livingkv.errors import StoreError
from livingkv.store.records import RECORD_HEADER_BYTES
from livingkv.tiers.tier import PageKey


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class Entry:
    """A page in a room. `record` is None until it was read and verified; `error` says why it never will be."""

    key: PageKey
    room: int
    n_users: int = 0
    pinned: bool = False
    dropped: bool = False
    record: memoryview | None = None
    error: StoreError | None = None
    _awaited: threading.Lock = field(default_factory=_locked)  # an Event takes a kilobyte, and there is one a page

    @property
    def in_use(self) -> bool:
        """True while its room cannot be had for another page."""
        return self.n_users > 0 or self.pinned

    @property
    def awaited(self) -> bool:
        """True until the page is there or failed."""
        return self.record is None and self.error is None

    def settle(self) -> None:
        """`record` or `error` is set: let those who wait go on."""
        self._awaited.release()

    def payload(self) -> memoryview:
        """The verified page, once it is there: blocks. Raises what made it fail. The entry must be claimed."""
        with self._awaited:
            pass
        if self.record is None:
            assert self.error is not None, "a page is there or failed"
            raise self.error
        return self.record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + self.key.location.length]


class Claim(NamedTuple):
    """The right to use an entry until it is released. The one with `must_read` has to fill it or fail it."""

    entry: Entry
    must_read: bool


class RamCounts(NamedTuple):
    """What the tier holds now, and what happened since it was made."""

    n_rooms: int
    n_pages: int
    n_pinned: int
    n_in_use: int
    size_bytes: int
    n_hits: int
    n_joined: int
    n_misses: int
    n_evicted: int
