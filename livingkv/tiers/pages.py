"""The pages of a store as one place: RAM before disk before what else there is.

Knows sessions' pages and how they are had; knows no codec and no tensor. Disk is the truth: RAM holds copies, so that
evicting loses nothing, and a page is asked for by where the catalog says it stands now, so that no old copy is served.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from livingkv.errors import PageDamaged, RecordDamaged
from livingkv.store import Store
from livingkv.store.reading import page_damaged
from livingkv.tiers.arena import Register
from livingkv.tiers.counts import TierCounts
from livingkv.tiers.disk_tier import DiskTier
from livingkv.tiers.page_reading import PageReading
from livingkv.tiers.ram import RamTier
from livingkv.tiers.ram_entry import Claim, Entry
from livingkv.tiers.tier import PageKey, Tier

N_READERS = 4
WAIT_S = 60.0
"""How long a reader waits for rooms that others use before it gives up."""

_STEP_PAGES = 17
"""`stream` asks for so many pages at once, and for the next so many while these are used: a passage of 1,024 tokens."""

Locate = Callable[[int, Sequence[int]], list[PageKey]]
OpenPage = Callable[[int, PageKey, memoryview], memoryview]


class TieredPages:
    """Verified page bytes, read through and kept within a budget. A context manager; threads may share it.

    A view that it hands out lies in the arena: valid as long as the docstring says, never to be written to. Pages of
    encrypted sessions stay sealed in RAM, and are opened into a copy each time.
    """

    def __init__(
        self,
        locate: Locate,
        ram: RamTier,
        lower: Sequence[Tier],
        *,
        open_page: OpenPage | None = None,
        n_readers: int = N_READERS,
    ) -> None:
        """open_page: opens the payload of a sealed page; None where no session is encrypted."""
        self._locate = locate
        self._open_page = open_page
        self._ram = ram
        self._lower = tuple(lower)
        self._reading = PageReading(ram, lower, n_readers)
        self._step = max(1, min(_STEP_PAGES, ram.n_rooms // 4))

    @contextmanager
    def lease(self, session_id: int, pages: Sequence[int]) -> Iterator[list[memoryview]]:
        """All these pages at once, in the order asked for, valid inside the block; blocks while they are read.

        Two readers of one page read it once. Whoever holds a lease must not wait for another one. Raises PageDamaged,
        InputError or SessionNotFound as `Store.read_pages`; StoreError when so many pages do not fit, or after `close`.
        """
        claims = self._must(self._locate(session_id, pages))
        try:
            yield [self._payload(claim.entry, session_id, page) for claim, page in zip(claims, pages, strict=True)]
        finally:
            self._ram.release(claim.entry for claim in claims)

    def stream(
        self, session_id: int, pages: Sequence[int], *, once: bool = False
    ) -> Generator[tuple[int, memoryview], None, None]:
        """Pages and their bytes one by one, in the order asked for, each valid until the next is asked for.

        Any number of pages, with any budget: the next ones are read while one is used. Close the iterator if it is
        not used up. once: what had to be read for it is replaced before all other pages, so that RAM keeps those.
        Raises as `lease`, at the page that it concerns.
        """
        keys = self._locate(session_id, pages)
        steps = [range(lo, min(lo + self._step, len(keys))) for lo in range(0, len(keys), self._step)]
        held: list[Claim] = []
        ahead: list[Claim] | None = None
        try:
            for number, step in enumerate(steps):
                wanted = [keys[position] for position in step]
                held, ahead = ahead or self._must(wanted), None
                if number + 1 < len(steps):
                    ahead = self._try([keys[position] for position in steps[number + 1]])
                for position in step:
                    entry, was_read = held[0]
                    yield pages[position], self._payload(entry, session_id, pages[position])
                    held.pop(0)
                    self._ram.release([entry], first_to_go=once and was_read)
        finally:
            self._ram.release(claim.entry for claim in [*held, *(ahead or [])])

    def prefetch(self, session_id: int, pages: Sequence[int]) -> int:
        """Begin to read pages that will be asked for; does not block. Answers how many are there or on their way.

        Only as many as there is room for now; damage shows when the page is asked for.
        """
        n_started = 0
        keys = self._locate(session_id, pages)
        for lo in range(0, len(keys), self._step):
            claims = self._try(keys[lo : lo + self._step])
            if claims is None:
                break
            n_started += len(claims)
            self._ram.release(claim.entry for claim in claims)
        return n_started

    def pin(self, session_id: int, pages: Sequence[int]) -> None:
        """Read these pages and keep them in RAM until `unpin`: at most half the budget.

        Raises InputError beyond that, and as `lease`; the pages pinned before stay so.
        """
        for lo in range(0, len(pages), self._step):
            part = pages[lo : lo + self._step]
            with self.lease(session_id, part):
                self._ram.pin(self._locate(session_id, part))

    def unpin(self, session_id: int, pages: Sequence[int]) -> None:
        """Let these pages be evicted again."""
        self._ram.unpin(self._locate(session_id, pages))

    def _must(self, keys: Sequence[PageKey]) -> list[Claim]:
        """Claims on all the pages, their reads begun or done; waits for rooms. The caller holds no other claim."""
        claims = self._ram.claim(keys, WAIT_S)
        assert claims is not None, "a claim that may wait is answered"
        self._reading.start([claim.entry for claim in claims if claim.must_read], take_part=True)
        return claims

    def _try(self, keys: Sequence[PageKey]) -> list[Claim] | None:
        """The same without waiting, for reads or for rooms; None when there is no room."""
        claims = self._ram.claim(keys, None)
        if claims is not None:
            self._reading.start([claim.entry for claim in claims if claim.must_read], take_part=False)
        return claims

    def drop(self, keys: Sequence[PageKey]) -> int:
        """Forget pages in RAM and overwrite them; one that is being read, when its last reader is done."""
        return self._ram.drop(keys)

    def drop_session(self, session_id: int) -> int:
        """Forget every page that a session owns, as `drop`: call it once the catalog has forgotten the session."""
        return self._ram.drop([key for key in self._ram.held() if key.session_id == session_id])

    def estimate_seconds(self, session_id: int, pages: Sequence[int]) -> float | None:
        """How long these pages would take to read, at the speeds measured so far; those in RAM take nothing.

        None while nothing has been read yet. For choosing between reading pages and computing them again.
        """
        held = set(self._ram.held())
        missing = [key for key in self._locate(session_id, pages) if key not in held]
        return self._lower[0].estimate_seconds(missing) if missing else 0.0

    def _payload(self, entry: Entry, session_id: int, page: int) -> memoryview:
        try:
            payload = entry.payload()
            return payload if self._open_page is None else self._open_page(session_id, entry.key, payload)
        except PageDamaged:
            raise
        except RecordDamaged as error:
            raise page_damaged(session_id, page, error) from error

    def counts(self) -> TierCounts:
        """What each tier holds and did."""
        return TierCounts(self._ram.counts(), self._reading.counts())

    def check(self) -> None:
        """Assert that the tiers' books agree. When nothing is being read."""
        self._ram.check()

    def close(self) -> None:
        """Finish reads under way and give the memory back. A second call does nothing.

        Later calls raise StoreError. Views that readers still hold stay valid memory. Close it before its store.
        """
        self._reading.close()
        self._ram.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_pages(
    store: Store, *, page_bytes: int, ram_budget_bytes: int, register: Register | None = None
) -> TieredPages:
    """The pages of an open store: RAM of at most `ram_budget_bytes` over its disk.

    page_bytes: the size of a page of the store's codec and model. register: pins the RAM for a device. Raises
    SettingError when the budget is too small for 4 pages.
    """
    ram = RamTier(ram_budget_bytes, page_bytes + store.seal_bytes, register)
    lower = [DiskTier(store.segments, store.disk)]
    return TieredPages(store.locate_pages, ram, lower, open_page=store.open_page)
