"""Reading missing pages into their rooms, verified, by a pool of threads.

Knows claims, tiers below RAM and record checksums; refuses to know sessions. A page counts as there only after its
header and payload were checked in the very bytes that readers will see (no copy, and XXH3 runs without the
interpreter's lock).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from livingkv.errors import RecordDamaged, StoreError
from livingkv.store.records import record_bytes
from livingkv.store.segment_reader import adjacent, payload_of
from livingkv.tiers.counts import LowerCounts, LowerMeter
from livingkv.tiers.ram import RamTier
from livingkv.tiers.ram_entry import Entry
from livingkv.tiers.tier import Tier

PIECE_BYTES = 1 << 23
"""One read: a passage of 1,024 tokens of the default model. Two shorter ones side by side were no faster on one
drive, and need another thread."""


class PageReading:
    """Fills claimed entries from the first of the tiers that has a sound copy."""

    def __init__(self, ram: RamTier, lower: Sequence[Tier], n_readers: int) -> None:
        self._ram = ram
        self._lower = [(tier, LowerMeter(tier.name)) for tier in lower]
        self._pool = ThreadPoolExecutor(n_readers, thread_name_prefix="livingkv-pages")

    def start(self, entries: Sequence[Entry], *, take_part: bool) -> None:
        """Have the entries read; each is filled or failed in the end, whatever happens.

        take_part: the caller's own thread reads the last piece, and blocks for that long.
        """
        keys = [entry.key for entry in entries]
        pieces = [[entries[position] for position in run] for run in adjacent(keys, PIECE_BYTES)]
        own = [pieces.pop()] if take_part and pieces else []
        for piece in pieces:
            try:
                self._pool.submit(self._read, piece)
            except RuntimeError:
                self._fail(piece, StoreError("the pages are closed: open the store again"))
        for piece in own:
            self._read(piece)

    def _read(self, entries: Sequence[Entry]) -> None:
        try:
            left = self._fitting(entries)
            damage: dict[int, StoreError] = {}
            for tier, meter in self._lower:
                if left:
                    left = self._read_from(tier, meter, left, damage)
            for entry in left:
                segment, offset, _ = entry.key.location
                missing = RecordDamaged(
                    f"segment {segment} offset {offset}: no tier has it", segment=segment, offset=offset
                )
                self._ram.fail(entry, damage.get(id(entry), missing))
        except Exception as error:  # the edge of a thread: whoever waits for the pages is told
            failure = StoreError(f"pages could not be read ({error}): try again")
            failure.__cause__ = error
            self._fail([entry for entry in entries if entry.awaited], failure)

    def _fitting(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries whose page fits into a room; the others fail."""
        for entry in entries:
            segment, offset, length = entry.key.location
            if length > self._ram.page_bytes:
                message = f"segment {segment} offset {offset}: {length} bytes are not a page of this model"
                self._ram.fail(entry, RecordDamaged(message, segment=segment, offset=offset))
        return [entry for entry in entries if entry.awaited]

    def _read_from(
        self, tier: Tier, meter: LowerMeter, entries: Sequence[Entry], damage: dict[int, StoreError]
    ) -> list[Entry]:
        """Fill what the tier has; answers the entries that are left, and notes the first damage of each."""
        started = perf_counter()
        answers = tier.get([entry.key for entry in entries], [self._ram.room(entry) for entry in entries])
        left: list[Entry] = []
        n_absent = n_bytes = 0
        for entry, answer in zip(entries, answers, strict=True):
            if isinstance(answer, memoryview):
                try:
                    payload_of(answer, entry.key)
                except StoreError as error:
                    damage.setdefault(id(entry), error)
                    left.append(entry)
                else:
                    self._ram.fill(entry, answer)
                    n_bytes += record_bytes(entry.key.location.length)
                continue
            left.append(entry)
            if answer is None:
                n_absent += 1
            else:
                damage.setdefault(id(entry), answer)
        meter.add(
            n_pages=len(entries) - len(left),
            n_bytes=n_bytes,
            n_absent=n_absent,
            n_damaged=len(left) - n_absent,
            seconds=perf_counter() - started,
        )
        return left

    def _fail(self, entries: Sequence[Entry], error: StoreError) -> None:
        for entry in entries:
            self._ram.fail(entry, error)

    def counts(self) -> tuple[LowerCounts, ...]:
        """What each tier below RAM did."""
        return tuple(meter.counts() for _, meter in self._lower)

    def close(self) -> None:
        """Finish the reads under way, and refuse others."""
        self._pool.shutdown(wait=True)
