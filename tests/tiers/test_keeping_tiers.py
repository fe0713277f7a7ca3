"""What RAM and a remote tier promise alike: keep, evict the oldest, pin, drop; and what RAM's arena adds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv.errors import InputError, StoreError
from livingkv.store.records import Location, RecordType
from livingkv.tiers import KeepingTier, PageKey, RamTier, budget_for
from livingkv.tiers.tier import BLOCK_BYTES, room_bytes
from tests.tiers.tier_cases import RemoteFake, record_of

PAGE = 5000
ROOM = room_bytes(PAGE)
MAKERS: list[Callable[[], KeepingTier]] = [lambda: RamTier(budget_for(8, PAGE), PAGE), lambda: RemoteFake(8)]


def key_of(page: int) -> PageKey:
    """A key whose record stands anywhere between two block borders."""
    return PageKey(Location(1, 64 + page * 5056, PAGE), RecordType.PAGE, 1, page)


def payload_of_page(page: int) -> bytes:
    return random.Random(page).randbytes(PAGE)


def put(tier: KeepingTier, page: int) -> bool:
    return tier.put(key_of(page), record_of(key_of(page), payload_of_page(page)))


def got(tier: KeepingTier, page: int) -> bytes | None:
    answer = tier.get([key_of(page)], [memoryview(bytearray(ROOM))])[0]
    return bytes(answer) if isinstance(answer, memoryview) else None


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_put_is_had(make: Callable[[], KeepingTier]) -> None:
    tier = make()
    for page in range(8):
        assert put(tier, page)
    for page in range(8):
        assert got(tier, page) == record_of(key_of(page), payload_of_page(page))
    assert got(tier, 8) is None


@pytest.mark.parametrize("make", MAKERS)
def test_full_tier_evicts_what_is_not_pinned(make: Callable[[], KeepingTier]) -> None:
    tier = make()
    for page in range(8):
        put(tier, page)
    size = tier.size_bytes()
    tier.pin([key_of(0), key_of(1)])
    for page in range(8, 30):
        assert put(tier, page)
        assert tier.size_bytes() <= size
    assert got(tier, 0) is not None
    assert got(tier, 1) is not None
    assert got(tier, 2) is None
    tier.unpin([key_of(0), key_of(1)])
    for page in range(30, 38):
        put(tier, page)
    assert got(tier, 0) is None


@pytest.mark.parametrize("make", MAKERS)
def test_dropped_page_is_gone_also_when_pinned(make: Callable[[], KeepingTier]) -> None:
    tier = make()
    put(tier, 1)
    put(tier, 2)
    tier.pin([key_of(1)])
    assert tier.drop([key_of(1), key_of(7)]) == 1
    assert got(tier, 1) is None
    assert got(tier, 2) is not None


@pytest.mark.parametrize("make", MAKERS)
def test_no_more_than_half_can_be_pinned(make: Callable[[], KeepingTier]) -> None:
    tier = make()
    for page in range(8):
        put(tier, page)
    tier.pin([key_of(page) for page in range(4)])
    with pytest.raises(InputError, match="pinned"):
        tier.pin([key_of(4)])


@pytest.mark.parametrize("make", MAKERS)
def test_estimate_is_no_time_or_unknown(make: Callable[[], KeepingTier]) -> None:
    assert not make().estimate_seconds([key_of(1)])


def test_budget_too_small_names_what_is_needed() -> None:
    with pytest.raises(InputError, match=str(budget_for(4, PAGE))):
        RamTier(budget_for(4, PAGE) - 1, PAGE)


def test_room_holds_a_record_wherever_it_stands() -> None:
    for start in range(0, BLOCK_BYTES, 8):
        assert start + 48 + PAGE <= ROOM
    assert ROOM - PAGE < 3 * BLOCK_BYTES


def test_dropped_bytes_are_overwritten() -> None:
    tier = RamTier(budget_for(4, PAGE), PAGE)
    put(tier, 1)
    claims = tier.claim([key_of(1)], 0)
    assert claims is not None
    room = tier.room(claims[0].entry)
    assert payload_of_page(1) in bytes(room)
    tier.drop([key_of(1)])
    assert payload_of_page(1) in bytes(room), "a reader still has it"
    tier.release([claims[0].entry])
    assert bytes(room) == bytes(ROOM)
    tier.check()


def test_claims_that_cannot_fit_do_not_wait() -> None:
    tier = RamTier(budget_for(4, PAGE), PAGE)
    with pytest.raises(StoreError, match="ram_budget_bytes"):
        tier.claim([key_of(page) for page in range(5)], 60.0)
    held = tier.claim([key_of(page) for page in range(3)], 0)
    assert held is not None
    assert tier.claim([key_of(4), key_of(5)], None) is None
    with pytest.raises(StoreError, match="in use"):
        tier.claim([key_of(4), key_of(5)], 0.01)


def test_closed_tier_refuses_claims() -> None:
    tier = RamTier(budget_for(4, PAGE), PAGE)
    put(tier, 1)
    claims = tier.claim([key_of(1)], 0)
    assert claims is not None
    payload = claims[0].entry.payload()
    tier.close()
    with pytest.raises(StoreError, match="closed"):
        tier.claim([key_of(2)], 0)
    assert payload == payload_of_page(1), "a view outlives the tier"
    tier.release([claims[0].entry])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "claim", "release", "drop", "pin", "unpin"]), st.integers(0, 9))))
def test_random_operations_lose_no_room_and_mix_no_pages(operations: list[tuple[str, int]]) -> None:
    tier = RamTier(budget_for(6, PAGE), PAGE)
    claimed = []
    for operation, page in operations:
        if operation == "put":
            put(tier, page)
        elif operation == "claim" and (claims := tier.claim([key_of(page)], None)) is not None:
            entry, must_read = claims[0]
            if must_read and page == 9:
                tier.fail(entry, StoreError("unreadable"))
            elif must_read:
                place = tier.room(entry)[: 48 + PAGE]
                place[:] = record_of(key_of(page), payload_of_page(page))[: 48 + PAGE]
                tier.fill(entry, place)
            claimed.append(entry)
        elif operation == "release" and claimed:
            tier.release([claimed.pop(page % len(claimed))])
        elif operation == "drop":
            tier.drop([key_of(page)])
        elif operation == "pin" and tier.counts().n_pinned < 3:
            tier.pin([key_of(page)])
        elif operation == "unpin":
            tier.unpin([key_of(page)])
        for entry in claimed:
            if entry.error is None:
                assert entry.payload() == payload_of_page(entry.key.number)
    tier.release(claimed)
    tier.check()
    tier.close()
