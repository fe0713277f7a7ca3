"""Experts in RAM, within a hard budget: which row holds which expert, and in what state.

A row is EMPTY, READING, READY, COPYING (a device reads it) or FAILED. Only READY and COPYING rows are ever computed
with. A read that failed unmaps its expert and raises, so that the next use reads again. A row that is being read or
copied is never given to another expert, whatever became of the pass that asked for it.
Used by one thread, that of the model; other threads only complete futures. Knows rows, keys and futures; refuses to
know files and tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from livingkv.device_queue import Fence
from livingkv.experts.eviction import Eviction
from livingkv.experts.keys import ExpertKey
from livingkv.tiers.arena import Arena, Register

N_PASSING = 4
"""Rows that are never kept, for experts on their way through."""


class RowState(Enum):
    """What a row's bytes are."""

    EMPTY = auto()
    READING = auto()
    READY = auto()
    COPYING = auto()
    FAILED = auto()


@dataclass(slots=True, eq=False)
class Row:
    """One row. n_users: passes that need it now. is_kept: it stays after its use.

    slots, views: tensors over its bytes, as bytes and as what is computed with.
    """

    number: int
    data: memoryview
    state: RowState = RowState.EMPTY
    key: ExpertKey | None = None
    future: Future[None] | None = None
    fence: Fence | None = None
    n_users: int = 0
    is_kept: bool = False
    slots: list[Any] = field(default_factory=list)
    views: dict[str, Any] = field(default_factory=dict)

    def forget_views(self) -> None:
        """What lies in the row is another expert from now on, or nothing."""
        self.slots.clear()
        self.views.clear()


class RowArena:
    """`n_rows` rows of `row_bytes`, a multiple of a memory page. n_needed: how many experts there are in all."""

    def __init__(
        self,
        n_rows: int,
        row_bytes: int,
        *,
        n_needed: int,
        eviction: Callable[[int], Eviction],
        register: Register | None = None,
    ) -> None:
        assert n_rows >= 1
        self.n_rows = n_rows
        self.n_kept_at_most = n_kept_of(n_rows, n_needed)
        self._n_spare = (n_rows - self.n_kept_at_most + 1) // 2
        self._memory = Arena(n_rows, row_bytes, register)
        self._rows = [Row(number, self._memory.view(number)) for number in range(n_rows)]
        self._empty = self._rows[::-1]
        self._n_kept = 0
        self._mapped: dict[ExpertKey, Row] = {}  # the one that was used the longest ago comes first
        self._eviction = eviction(self.n_kept_at_most)

    @property
    def size_bytes(self) -> int:
        """Memory of all rows."""
        return self._memory.n_rooms * self._memory.room_bytes

    def state(self, key: ExpertKey) -> RowState:
        """An expert's state: EMPTY where no row has it."""
        row = self._mapped.get(key)
        return RowState.EMPTY if row is None else row.state

    def keys(self) -> list[ExpertKey]:
        """What is held or being read, the longest unused first."""
        return list(self._mapped)

    def use(self, key: ExpertKey) -> Row | None:
        """The row that holds an expert, or will, protected until `release`; None where there is none."""
        self._eviction.used(key)
        row = self._mapped.pop(key, None)
        if row is not None and row.n_users == 0 and _is_lost(row):
            self._clear(row)  # nobody waited for that read, so nobody was told; it is read again
            return None
        if row is not None:
            self._mapped[key] = row
            row.n_users += 1
        return row

    def take(self, key: ExpertKey, n_in_pass: int, *, may_wait: bool = True) -> Row | None:
        """A row to read an expert into, protected; follow with `begin`. None where all rows are needed at the moment.

        Where nothing else is left it waits for a device, and if may_wait also for reads that nobody needs.
        """
        assert key not in self._mapped
        row, is_kept = self._room(key, n_in_pass, n_spare=0)
        while row is None and self._settle(may_wait=may_wait):  # a row that is over may be one that has to stay
            row, is_kept = self._room(key, n_in_pass, n_spare=0)
        return self._taken(row, is_kept)

    def take_ahead(self, key: ExpertKey, n_in_pass: int) -> Row | None:
        """As `take`, for an expert that nobody needs yet: never waits, and leaves rows for those that are needed."""
        assert key not in self._mapped
        return self._taken(*self._room(key, n_in_pass, n_spare=self._n_spare))

    def begin(self, row: Row, key: ExpertKey, future: Future[None]) -> None:
        """The row is being read into, until the future is done."""
        assert row.state is RowState.EMPTY and row.n_users == 1
        row.state, row.key, row.future = RowState.READING, key, future
        self._mapped[key] = row

    def give_back(self, row: Row) -> None:
        """A row that was taken and for which no read began."""
        assert row.state is RowState.EMPTY
        self._clear(row)

    def finish(self, row: Row) -> None:
        """Wait for the row's read. Raises what it failed with; the expert is unmapped then."""
        if row.state is not RowState.READING:
            return
        assert row.future is not None
        error = row.future.exception()
        row.future = None
        if error is None:
            row.state = RowState.READY
            return
        row.state = RowState.FAILED
        self._unmap(row)
        if row.n_users == 0:
            self._clear(row)
        raise error

    def copying(self, row: Row, fence: Fence) -> None:
        """A device reads the row until the fence is done."""
        assert row.state in (RowState.READY, RowState.COPYING)
        row.state, row.fence = RowState.COPYING, fence

    def release(self, row: Row) -> None:
        """One user less. A row that is not kept becomes EMPTY as soon as nobody needs it."""
        assert row.n_users > 0
        row.n_users -= 1
        if row.n_users == 0 and (row.state is RowState.FAILED or not row.is_kept):
            self._let_go(row)

    def drop(self, key: ExpertKey) -> None:
        """Forget an expert that nobody needs at the moment, so that its next use reads it again."""
        row = self._mapped[key]
        assert row.n_users == 0
        if row.state is RowState.READING:
            assert row.future is not None
            row.future.exception()
        if row.fence is not None:
            row.fence.wait()
        self._unmap(row)
        self._clear(row)

    def settle(self, key: ExpertKey) -> bool:
        """Whether a read ahead that nobody needed is over; then it is READY, or gone if it failed or is not kept."""
        row = self._mapped.get(key)
        if row is None or row.state is not RowState.READING or row.n_users:
            return True
        if not _is_over(row):
            return False
        self._settle_row(row)
        return True

    def close(self) -> None:
        """Wait for devices, and give the memory back. No read may be under way."""
        for row in self._rows:
            if row.fence is not None:
                row.fence.wait()
            row.forget_views()
            row.data.release()
        self._mapped.clear()
        self._memory.close()

    def check(self) -> list[str]:
        """What is wrong with the rows: nothing, unless there is a bug."""
        problems = [f"{key} is mapped to {row.key}" for key, row in self._mapped.items() if row.key != key]
        free = {row.number for row in self._empty}
        for row in self._rows:
            what = f"row {row.number} is {row.state.name}"
            is_mapped = row.key is not None and self._mapped.get(row.key) is row
            if is_mapped != (row.state in (RowState.READING, RowState.READY, RowState.COPYING)):
                problems.append(f"{what} and {'' if is_mapped else 'not '}mapped")
            if (row.state is RowState.READING) != (row.future is not None):
                problems.append(f"{what}, which does not fit its future")
            if (row.state is RowState.COPYING) != (row.fence is not None):
                problems.append(f"{what}, which does not fit its fence")
            if row.state is RowState.READY and not row.is_kept and row.n_users == 0:
                problems.append(f"{what}, is not kept, and nobody needs it")
            if (row.state is RowState.EMPTY and row.n_users == 0) != (row.number in free):
                problems.append(f"{what} and {'' if row.number in free else 'not '}free")
        if len(free) != len(self._empty):
            problems.append("a row is free twice")
        n_kept = sum(row.is_kept for row in self._rows)
        if n_kept != self._n_kept or n_kept > self.n_kept_at_most:
            problems.append(f"{n_kept} rows are kept, counted as {self._n_kept}, at most {self.n_kept_at_most}")
        return problems

    def _room(self, key: ExpertKey, n_in_pass: int, n_spare: int) -> tuple[Row | None, bool]:
        """A row and whether it is kept. n_spare: so many rows that are not kept must stay EMPTY."""
        if self._n_kept < self.n_kept_at_most:
            return (self._empty.pop(), True) if len(self._empty) > n_spare else (None, False)
        victim = self._eviction.victim(key, self._mapped, self._may_go, n_in_pass)
        if victim is not None:
            row = self._mapped[victim]
            self._unmap(row)
            self._clear(row)
            return self._empty.pop(), True
        return (self._empty.pop() if len(self._empty) > n_spare else None), False

    def _taken(self, row: Row | None, is_kept: bool) -> Row | None:
        if row is not None:
            row.is_kept, row.n_users = is_kept, 1
            self._n_kept += is_kept
        return row

    def _may_go(self, key: ExpertKey) -> bool:
        row = self._mapped[key]
        if row.n_users or not row.is_kept:  # one that is not kept becomes EMPTY when its copy is over, in `_settle`
            return False
        if row.state is RowState.COPYING and row.fence is not None and row.fence.is_done():
            row.state, row.fence = RowState.READY, None
        return row.state is RowState.READY

    def _settle(self, *, may_wait: bool) -> bool:
        """Look after rows that a pass left behind: all that are over, else one. Whether there were any."""
        left = [row for row in self._mapped.values() if row.n_users == 0 and row.state is not RowState.READY]
        chosen = [row for row in left if _is_over(row)] or [row for row in left if may_wait or row.future is None][:1]
        for row in chosen:
            self._settle_row(row)
        return bool(chosen)

    def _settle_row(self, row: Row) -> None:
        if row.fence is not None:
            row.fence.wait()
            row.fence, row.state = None, RowState.READY
        elif row.future is not None:
            error = row.future.exception()  # of a read that nobody waits for any more: nobody is told
            row.future = None
            row.state = RowState.READY if error is None else RowState.FAILED
        if row.state is RowState.FAILED or not row.is_kept:
            self._unmap(row)
            self._clear(row)

    def _let_go(self, row: Row) -> None:
        if row.state in (RowState.READING, RowState.COPYING):
            return  # `_settle` finds it
        self._unmap(row)
        self._clear(row)

    def _unmap(self, row: Row) -> None:
        if row.key is not None and self._mapped.get(row.key) is row:
            del self._mapped[row.key]

    def _clear(self, row: Row) -> None:
        row.state, row.key, row.future, row.fence = RowState.EMPTY, None, None, None
        self._n_kept -= row.is_kept
        row.n_users, row.is_kept = 0, False
        row.forget_views()
        self._empty.append(row)


def n_kept_of(n_rows: int, n_needed: int) -> int:
    """How many of an arena's rows keep their expert at most, where there are `n_needed` experts in all."""
    return n_rows if n_rows >= n_needed else n_rows - min(N_PASSING, max(1, n_rows // 4))


def _is_over(row: Row) -> bool:
    return (row.fence is None or row.fence.is_done()) and (row.future is None or row.future.done())


def _is_lost(row: Row) -> bool:
    return row.future is not None and row.future.done() and row.future.exception() is not None
