"""The arena against a dict: whatever happens in whatever order, what it serves is what was read."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from livingkv.errors import ExpertReadError
from livingkv.experts.arena import Row, RowArena, RowState
from livingkv.experts.eviction import LeastRecent, StableSubset
from livingkv.experts.keys import ExpertKey

PAGE = 4096
KEYS = st.integers(0, 11).map(lambda number: ExpertKey(number % 3, number // 3))
LOST = ExpertReadError("lost", path="file", offset=0)


class FakeFence:
    """A Fence that a test opens."""

    def __init__(self) -> None:
        self.done = False
        self.was_waited_for = False

    def is_done(self) -> bool:
        return self.done

    def wait(self) -> None:
        self.done = self.was_waited_for = True


class LateRead(Future[None]):
    """A read that ends when somebody waits for it."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self.set_result(None)
        return super().exception(timeout)


def content(key: ExpertKey) -> bytes:
    """What an expert's row holds when it was read."""
    return bytes([key.layer * 16 + key.expert + 1]) * PAGE


class ArenaMachine(RuleBasedStateMachine):
    """Passes that take, read, use, copy and release rows; `held` is what the dict says about each protected expert."""

    def __init__(self) -> None:
        super().__init__()
        self.reading: dict[ExpertKey, Future[None]] = {}
        self.held: dict[ExpertKey, Row] = {}
        self.arena = RowArena(5, PAGE, n_needed=12, eviction=lambda n: LeastRecent(1, n))

    @rule(key=KEYS, n_in_pass=st.integers(1, 6))
    def ask(self, key: ExpertKey, n_in_pass: int) -> None:
        if key in self.held:
            return
        row = self.arena.use(key)
        if row is None:
            row = self.arena.take(key, n_in_pass, may_wait=not self.reading)  # which nobody would complete meanwhile
            if row is None:
                return
            assert row.state is RowState.EMPTY
            future: Future[None] = Future()
            self.arena.begin(row, key, future)
            self.reading[key] = future
        assert row.key == key
        self.held[key] = row

    @precondition(lambda self: self.reading)
    @rule(data=st.data(), fails=st.booleans())
    def complete(self, data: st.DataObject, fails: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.reading)))
        future = self.reading.pop(key)
        row = next(row for row in self.arena._rows if row.future is future)
        if fails:
            row.data[:7] = b"garbage"
            future.set_exception(LOST)
        else:
            row.data[:] = content(key)
            future.set_result(None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        row = self.held[key]
        if row.future is not None and not row.future.done():
            return
        failed = row.future is not None and row.future.exception() is not None
        if failed:
            with pytest.raises(ExpertReadError, match="lost"):
                self.arena.finish(row)
            assert self.arena.state(key) is RowState.EMPTY
            self.arena.release(self.held.pop(key))
        else:
            self.arena.finish(row)
            assert bytes(row.data) == content(key)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), done=st.booleans())
    def copy(self, data: st.DataObject, done: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        if self.held[key].state in (RowState.READY, RowState.COPYING):
            fence = FakeFence()
            fence.done = done
            self.arena.copying(self.held[key], fence)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.arena.release(self.held.pop(key))

    @rule(key=KEYS)
    def drop(self, key: ExpertKey) -> None:
        if key not in self.held and key not in self.reading and self.arena.state(key) is not RowState.EMPTY:
            self.arena.drop(key)
            assert self.arena.state(key) is RowState.EMPTY

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert self.arena.check() == []

    @invariant()
    def protected_experts_keep_their_bytes(self) -> None:
        for key, row in self.held.items():
            assert row.key == key and self.arena.state(key) is row.state
            if row.state in (RowState.READY, RowState.COPYING):
                assert bytes(row.data[:8]) == content(key)[:8]

    @invariant()
    def what_is_ready_is_what_was_read(self) -> None:
        for row in self.arena._rows:
            if row.state in (RowState.READY, RowState.COPYING):
                assert row.key is not None and bytes(row.data[:8]) == content(row.key)[:8]

    def teardown(self) -> None:
        for future in self.reading.values():
            future.set_exception(LOST)
        self.arena.close()


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, print_blob=True)


def read(arena: RowArena, key: ExpertKey, n_in_pass: int = 1) -> bool:
    """Use an expert as a pass does. Whether it was there."""
    row = arena.use(key)
    is_hit = row is not None
    if row is None:
        row = arena.take(key, n_in_pass)
        assert row is not None
        future: Future[None] = Future()
        future.set_result(None)
        arena.begin(row, key, future)
        arena.finish(row)
    arena.release(row)
    return is_hit


def laps(arena: RowArena, n_laps: int = 6) -> int:
    """The hits of so many tokens that all need the same 16 experts, two in each of eight layers."""
    return sum(
        read(arena, ExpertKey(layer, expert), 2) for _ in range(n_laps) for layer in range(8) for expert in (0, 1)
    )


def test_less_than_a_lap_hits_nothing_by_age_and_most_of_itself_as_a_stable_subset() -> None:
    by_age = RowArena(12, PAGE, n_needed=100, eviction=lambda n: LeastRecent(1, n))
    subset = RowArena(12, PAGE, n_needed=100, eviction=lambda n: StableSubset())
    assert by_age.n_kept_at_most == subset.n_kept_at_most == 9
    assert laps(by_age) == 0
    assert laps(subset) == 5 * 9
    assert by_age.check() == subset.check() == []


def test_a_subset_takes_in_what_is_needed_twice_as_often() -> None:
    arena = RowArena(2, PAGE, n_needed=100, eviction=lambda n: StableSubset())
    rare, common = ExpertKey(0, 0), ExpertKey(0, 1)
    assert [read(arena, key) for key in (rare, common, common, common)] == [False] * 4
    assert [read(arena, common), read(arena, common)] == [False, True]
    assert not read(arena, rare)


def test_a_long_pass_leaves_what_tokens_need() -> None:
    arena = RowArena(8, PAGE, n_needed=100, eviction=lambda n: LeastRecent(2, n))
    kept = [ExpertKey(layer, expert) for layer in (0, 1) for expert in (0, 1, 2)]
    assert not any(read(arena, key, 3) for key in kept)
    assert not any(read(arena, ExpertKey(0, expert), 40) for expert in range(3, 43))
    assert all(read(arena, key, 3) for key in kept)


def test_a_row_that_a_device_copies_is_waited_for_only_when_nothing_else_is_left() -> None:
    arena = RowArena(1, PAGE, n_needed=9, eviction=lambda n: LeastRecent(1, n))
    fence = FakeFence()
    row = arena.take(ExpertKey(0, 0), 1)
    assert row is not None
    future: Future[None] = Future()
    future.set_result(None)
    arena.begin(row, ExpertKey(0, 0), future)
    arena.finish(row)
    arena.copying(row, fence)
    arena.release(row)
    assert arena.state(ExpertKey(0, 0)) is RowState.COPYING and not fence.was_waited_for
    assert not read(arena, ExpertKey(0, 1)) and fence.was_waited_for


def test_what_is_read_ahead_leaves_rows_and_is_settled_or_found() -> None:
    arena = RowArena(8, PAGE, n_needed=12, eviction=lambda n: StableSubset())
    futures: dict[ExpertKey, Future[None]] = {}
    for number in range(12):
        key = ExpertKey(0, number)
        row = arena.take_ahead(key, 1)
        if row is not None:
            arena.begin(row, key, futures.setdefault(key, Future()))
            arena.release(row)
    assert len(futures) == 7 and arena.n_kept_at_most == 6  # six are kept, and of two others one is left
    kept, passing = ExpertKey(0, 0), ExpertKey(0, 6)
    assert not arena.settle(kept) and arena.take_ahead(ExpertKey(0, 9), 1) is None
    for future in futures.values():
        future.set_result(None)
    assert arena.settle(kept) and arena.state(kept) is RowState.READY
    assert arena.settle(passing) and arena.state(passing) is RowState.EMPTY
    found = arena.use(ExpertKey(0, 1))
    assert found is not None
    arena.finish(found)
    arena.release(found)
    assert arena.check() == []
    arena.close()


def test_a_long_pass_waits_until_a_row_is_over_that_need_not_stay() -> None:
    arena = RowArena(5, PAGE, n_needed=12, eviction=lambda n: LeastRecent(1, n))
    for expert in range(5):  # as a pass leaves them that failed: four that are kept, then one that is not
        row = arena.take(ExpertKey(0, expert), 1)
        assert row is not None
        arena.begin(row, ExpertKey(0, expert), LateRead())
        arena.release(row)
    assert arena.take(ExpertKey(0, 9), 6, may_wait=False) is None
    assert arena.take(ExpertKey(0, 9), 6) is not None
    assert [arena.state(ExpertKey(0, expert)) for expert in range(5)] == [RowState.READY] * 4 + [RowState.EMPTY]
    assert arena.check() == []
    arena.close()


def test_closing_waits_for_a_device() -> None:
    arena = RowArena(1, PAGE, n_needed=9, eviction=lambda n: LeastRecent(1, n))
    row, fence = arena.take(ExpertKey(0, 0), 1), FakeFence()
    assert row is not None
    arena.begin(row, ExpertKey(0, 0), LateRead())
    arena.finish(row)
    arena.copying(row, fence)
    arena.close()
    assert fence.was_waited_for


def test_a_pass_that_has_rows_does_not_wait_for_what_nobody_needs() -> None:
    arena = RowArena(1, PAGE, n_needed=12, eviction=lambda n: StableSubset())
    never: Future[None] = Future()
    row = arena.take(ExpertKey(0, 0), 1)
    assert row is not None
    arena.begin(row, ExpertKey(0, 0), never)
    arena.release(row)
    assert arena.take(ExpertKey(0, 1), 1, may_wait=False) is None
    never.set_result(None)
    assert arena.take(ExpertKey(0, 1), 1, may_wait=False) is not None
    arena.close()
