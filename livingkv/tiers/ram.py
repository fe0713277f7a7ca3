"""The RAM tier: verified pages in an arena, the least recently used replaced first, pages in use or pinned never.

Knows keys, rooms and who uses them; refuses to know where pages come from. A room is claimed before its page is read,
so that bytes on their way count against the budget too. Threads may share it; the lock is never held while reading.
All of it stands in one file, since one lock guards one account of rooms.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from time import monotonic

from livingkv.errors import InputError, RecordDamaged, SettingError, StoreError
from livingkv.tiers.arena import Arena, Register
from livingkv.tiers.ram_entry import Claim, Entry, RamCounts
from livingkv.tiers.tier import PageKey, record_start, room_bytes

MIN_ROOMS = 4

_BOOKKEEPING_BYTES = 1024
"""What Python holds for a page: its entry, key, views and places in two dicts; measured, and rounded up."""


def budget_for(n_pages: int, page_bytes: int) -> int:
    """Bytes of RAM that so many pages take, rooms rounded up to blocks and bookkeeping included."""
    return n_pages * (room_bytes(page_bytes) + _BOOKKEEPING_BYTES)


class RamTier:
    """A KeepingTier of at most `budget_bytes`, its bookkeeping included.

    page_bytes: the size of a page; larger ones are refused. Raises SettingError when fewer than 4 pages fit.
    """

    name = "ram"

    def __init__(self, budget_bytes: int, page_bytes: int, register: Register | None = None) -> None:
        least = budget_for(MIN_ROOMS, page_bytes)
        if budget_bytes < least:
            raise SettingError("ram_budget_bytes", budget_bytes, f"at least {least} are needed for this model")
        self.page_bytes = page_bytes
        n_rooms = budget_bytes // budget_for(1, page_bytes)
        self._arena = Arena(
            n_rooms, room_bytes(page_bytes), register, in_background=True
        )  # opening does not wait for it
        self._lock = threading.Lock()
        self._room_freed = threading.Condition(self._lock)
        self._entries: dict[PageKey, Entry] = {}
        self._idle: OrderedDict[PageKey, Entry] = OrderedDict()  # nobody uses them; the one released first is evicted
        self._n_in_use = 0
        self._n_pinned = 0
        self._counts = {"hits": 0, "joined": 0, "misses": 0, "evicted": 0}
        self._closed = False

    @property
    def n_rooms(self) -> int:
        """How many pages fit."""
        return self._arena.n_rooms

    def claim(self, keys: Sequence[PageKey], timeout_s: float | None) -> list[Claim] | None:
        """The right to use each page until `release`: all of them or none, so that claims cannot block one another.

        Waits up to `timeout_s` for rooms, then raises StoreError; None: does not wait, and answers None instead.
        Whoever waits must hold no other claim.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        with self._room_freed:
            while not self._fits(keys):
                if deadline is None:
                    return None
                if self._never_fits(keys) or not self._room_freed.wait(deadline - monotonic()):
                    raise StoreError(
                        f"{len(set(keys))} pages do not fit into the RAM budget now ({self.n_rooms} pages, "
                        f"{self._n_in_use} in use, {self._n_pinned} pinned): raise ram_budget_bytes"
                    )
            order = sorted(range(len(keys)), key=lambda i: keys[i] not in self._entries)  # hits before evictions
            claims = {position: self._take(keys[position]) for position in order}
        return [claims[position] for position in range(len(keys))]

    def _fits(self, keys: Sequence[PageKey]) -> bool:
        if self._closed:
            raise StoreError("the pages in RAM are closed: open the store again")
        if not keys:
            return True
        needed = sum(1 for key in set(keys) if key not in self._entries or key in self._idle)
        return self._n_in_use + needed <= self.n_rooms

    def _never_fits(self, keys: Sequence[PageKey]) -> bool:
        pinned = sum(1 for key in set(keys) if key in self._entries and self._entries[key].pinned)
        return len(set(keys)) - pinned > self.n_rooms - self._n_pinned

    def _take(self, key: PageKey) -> Claim:
        entry = self._entries.get(key)
        if entry is not None:
            self._counts["hits" if entry.record is not None else "joined"] += 1
            self._use(entry)
            return Claim(entry, must_read=False)
        self._counts["misses"] += 1
        if not self._arena.n_free:
            _, oldest = self._idle.popitem(last=False)
            del self._entries[oldest.key]
            self._arena.give_back(oldest.room)
            self._counts["evicted"] += 1
        entry = self._entries[key] = Entry(key, self._arena.take())
        self._use(entry)
        entry.n_users += 1  # the read itself: whoever claimed it may leave before it is done
        return Claim(entry, must_read=True)

    def _use(self, entry: Entry) -> None:
        self._n_in_use += not entry.in_use
        self._idle.pop(entry.key, None)
        entry.n_users += 1

    def room(self, entry: Entry) -> memoryview:
        """The room to read the page's record into."""
        return self._arena.view(entry.room)

    def fill(self, entry: Entry, record: memoryview) -> None:
        """The record, in the entry's room, was read and verified: let those who wait have it."""
        entry.record = record
        entry.settle()
        self.release([entry])

    def fail(self, entry: Entry, error: StoreError) -> None:
        """The page cannot be had. Those who wait get the error, whoever comes later reads anew."""
        with self._lock:
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
            entry.error = error
        entry.settle()
        self.release([entry])

    def release(self, entries: Iterable[Entry], *, first_to_go: bool = False) -> None:
        """Give claims back. Views of their payloads must not be used any more. first_to_go: nobody is expected to ask
        for these pages again: they are replaced before all others."""
        with self._room_freed:
            for entry in entries:
                entry.n_users -= 1
                if not entry.in_use:
                    self._n_in_use -= 1
                    self._leave(entry)
                    if first_to_go and self._idle.get(entry.key) is entry:
                        self._idle.move_to_end(entry.key, last=False)
            self._room_freed.notify_all()

    def _leave(self, entry: Entry) -> None:
        """Nobody uses the entry any more: it may be replaced, or goes at once if it is of no use."""
        if self._closed:
            return
        if self._entries.get(entry.key) is entry:
            self._idle[entry.key] = entry
            return
        if entry.dropped:
            self._arena.erase(entry.room)
        self._arena.give_back(entry.room)

    def get(self, keys: Sequence[PageKey], rooms: Sequence[memoryview]) -> list[memoryview | RecordDamaged | None]:
        """See Tier: copies out. Readers that can hold a claim need no copy."""
        found: list[memoryview | RecordDamaged | None] = []
        for key, room in zip(keys, rooms, strict=True):
            with self._lock:
                entry = self._entries.get(key)
                record = entry.record if entry is not None else None
                if record is not None:
                    room = room[record_start(key) : record_start(key) + len(record)]
                    room[:] = record
            found.append(None if record is None else room)
        return found

    def put(self, key: PageKey, record: bytes | memoryview) -> bool:
        """See KeepingTier."""
        claims = self.claim([key], None) if key.location.length <= self.page_bytes else None
        if claims is None:
            return False
        entry, must_read = claims[0]
        if must_read:
            start = record_start(key)
            place = self.room(entry)[start : start + len(record)]
            place[:] = record
            self.fill(entry, place)
        self.release([entry])
        return True

    def drop(self, keys: Sequence[PageKey]) -> int:
        """See KeepingTier. A page that somebody reads is overwritten when its last reader releases it."""
        n_dropped = 0
        with self._room_freed:
            for key in keys:
                entry = self._entries.pop(key, None)
                if entry is None:
                    continue
                n_dropped += 1
                entry.dropped = True
                self._unpin(entry)
                if self._idle.pop(key, None) is not None:
                    self._leave(entry)
            self._room_freed.notify_all()
        return n_dropped

    def pin(self, keys: Sequence[PageKey]) -> None:
        """See KeepingTier. At most half the rooms can be pinned: the others keep readers moving."""
        with self._lock:
            entries = [self._entries[key] for key in dict.fromkeys(keys) if key in self._entries]
            fresh = [entry for entry in entries if not entry.pinned]
            if self._n_pinned + len(fresh) > self.n_rooms // 2:
                allowed = f"half of the RAM budget, {self.n_rooms // 2} pages, can be pinned: raise ram_budget_bytes"
                raise InputError("pages to pin", self._n_pinned + len(fresh), allowed)
            for entry in fresh:
                self._n_in_use += not entry.in_use
                self._idle.pop(entry.key, None)
                entry.pinned = True
                self._n_pinned += 1

    def unpin(self, keys: Sequence[PageKey]) -> None:
        """See KeepingTier."""
        with self._room_freed:
            for key in keys:
                if (entry := self._entries.get(key)) is not None:
                    self._unpin(entry)
            self._room_freed.notify_all()

    def _unpin(self, entry: Entry) -> None:
        if not entry.pinned:
            return
        entry.pinned = False
        self._n_pinned -= 1
        if not entry.in_use:
            self._n_in_use -= 1
            self._leave(entry)

    def held(self) -> list[PageKey]:
        """The pages that it holds or awaits."""
        with self._lock:
            return list(self._entries)

    def estimate_seconds(self, keys: Sequence[PageKey]) -> float | None:
        """See Tier: memory is taken to cost nothing."""
        return 0.0

    def size_bytes(self) -> int:
        """Bytes of the arena that pages have now."""
        with self._lock:
            return (self.n_rooms - self._arena.n_free) * self._arena.room_bytes

    def counts(self) -> RamCounts:
        """What it holds and what happened so far."""
        size = self.size_bytes()
        with self._lock:
            now = (self.n_rooms, len(self._entries), self._n_pinned, self._n_in_use, size)
            return RamCounts(*now, *(self._counts[name] for name in ("hits", "joined", "misses", "evicted")))

    def check(self) -> None:
        """Assert that rooms and entries agree. For tests, and when nothing is going on."""
        with self._lock:
            entries = self._entries.values()
            rooms = [entry.room for entry in entries]
            assert len(set(rooms)) == len(rooms), "two pages in one room"
            in_use = sum(entry.in_use for entry in entries)
            assert in_use <= self._n_in_use <= self.n_rooms and self._n_pinned == sum(e.pinned for e in entries)
            assert len(self._idle) + in_use == len(rooms), "an entry is neither idle nor in use"
            assert self._arena.n_free + len(self._idle) + self._n_in_use == self.n_rooms, "a room was lost"

    def close(self) -> None:
        """Give the memory back. Later claims, and those that wait, raise StoreError; views that are out stay valid."""
        with self._room_freed:
            self._closed = True
            self._entries.clear()
            self._idle.clear()
            self._arena.close()
            self._room_freed.notify_all()
