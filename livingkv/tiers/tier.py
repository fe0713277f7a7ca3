"""What every tier of pages below device memory has in common: keys, rooms, and the protocol of a tier.

Knows records and how they lie in memory; knows no file and no network. A remote tier (an object store, Valkey, another
machine) is one more `Tier` behind the disk: nothing else changes. What it must keep is a page's whole record, header
included, because the header is what its reader verifies: a tier is never trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from livingkv.errors import RecordDamaged
from livingkv.store.records import record_bytes
from livingkv.store.segment_reader import Wanted

BLOCK_BYTES = 4096
"""Reads that go past the kernel's page cache start, end and land at multiples of this."""

PageKey = Wanted
"""A page's record: where it stands, and what its header must say. The bytes under a key never change: a page that is
rebuilt or moved stands elsewhere. Forks share keys, since the key names the owner."""


def room_bytes(page_bytes: int) -> int:
    """Bytes of a room: whole blocks that can hold a page's record wherever it stands in its segment."""
    return -(-(BLOCK_BYTES - 1 + record_bytes(page_bytes)) // BLOCK_BYTES) * BLOCK_BYTES


def record_start(key: PageKey) -> int:
    """Where a record lies in its room: as far from a block's border as on disk, so that blocks are read in place."""
    return key.location.offset % BLOCK_BYTES


class Tier(Protocol):
    """A place that holds page records. Threads may share it."""

    name: str

    def get(self, keys: Sequence[PageKey], rooms: Sequence[memoryview]) -> list[memoryview | RecordDamaged | None]:
        """Put each record into its room, at `record_start`; blocks.

        Answers a view of what was put, not verified and perhaps too short; or what failed; or None for a record that
        the tier does not have. Each room has at least `room_bytes` of the page. Raises StoreError after `close`.
        """
        ...

    def estimate_seconds(self, keys: Sequence[PageKey]) -> float | None:
        """How long `get` would take, from what was measured so far; None while nothing was."""
        ...

    def size_bytes(self) -> int:
        """Bytes of all the records that the tier holds."""
        ...


class KeepingTier(Tier, Protocol):
    """A tier that takes pages: RAM, or a remote one. The disk is none: pages enter it by commits alone."""

    def put(self, key: PageKey, record: bytes | memoryview) -> bool:
        """Keep a copy of a verified record. False when there is no room for it."""
        ...

    def drop(self, keys: Sequence[PageKey]) -> int:
        """Forget pages; what nobody is reading is overwritten or gone on return. Answers how many there were."""
        ...

    def pin(self, keys: Sequence[PageKey]) -> None:
        """Never evict these of its pages, until `unpin`. Raises InputError when too few others would be left."""
        ...

    def unpin(self, keys: Sequence[PageKey]) -> None:
        """Let these pages be evicted again."""
        ...
