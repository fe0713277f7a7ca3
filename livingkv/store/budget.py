"""The disk budget: kept in the manifest, in force for every writer, and room made under it before a commit.

Knows what the file system holds and how pages, dropped, become free space; refuses to know which pages are cold.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from livingkv.errors import InputError, StoreFull
from livingkv.store.making import SEGMENTS
from livingkv.store.manifest import manifest_damaged, read_manifest, write_manifest
from livingkv.store.plan import Plan
from livingkv.store.quota import hole_bytes, moved_bytes, plan_room
from livingkv.store.segment_writer import segment_path
from livingkv.store.stats import held_bytes
from livingkv.store.upkeep import Moved, StoreUpkeep

_SPARE_SHARE = 50
"""Room is made for a fiftieth of the budget at once, so that not every append has to make some."""

_HOLE_SHARE = 0.75
"""Where holes give back less of the dropped records than this, segments are moved instead."""

_MOSTLY_DEAD = 0.5
"""Segments of which this much is dead on disk are moved before any page is dropped: more is freed than copied."""

_LEAST_DEAD = 0.05
"""The same once pages were dropped and it did not suffice."""


class StoreBudget(StoreUpkeep):
    """Base of `Store`: the disk budget."""

    _budget_bytes: int | None
    _segment_bytes: int
    _holes_work: bool

    @property
    def disk_budget_bytes(self) -> int | None:
        """The disk budget in force when the store was opened or, by this writer, since; None without one."""
        return self._budget_bytes

    def limit_disk(self, n_bytes: int | None) -> None:
        """Let the store's folder take at most `n_bytes` from now on, also for later writers; None lifts that.

        Durable on return. The KV of the coldest pages of sessions that are not pinned goes at once where that is
        needed, and before every later commit. Raises InputError; StoreFull if text and pinned sessions alone are
        more: the budget is as before then; StoreUnwritable or StoreError.
        """
        if n_bytes is not None and (type(n_bytes) is not int or n_bytes < 1):
            raise InputError("disk budget", repr(n_bytes), "a number of bytes, or None for no limit, is allowed")
        with self._append_lock:
            self._writing()
            before, self._budget_bytes = self._budget_bytes, n_bytes
            if before == n_bytes:
                return
            with contextlib.ExitStack() as undo:
                undo.callback(setattr, self, "_budget_bytes", before)
                with self._catalog.read() as snapshot:
                    nothing = Plan(snapshot.state())
                self._make_room(nothing)
                manifest = read_manifest(self.path)
                if manifest is None:
                    raise manifest_damaged(self.path, "it is gone")
                write_manifest(self._disk, self.path, replace(manifest, disk_budget_bytes=n_bytes))
                undo.pop_all()

    def _make_room(self, plan: Plan, n_more: int = 0) -> bool:
        """Before a commit, under the append lock: drop the coldest pages if the budget would be exceeded; True if so.

        What is held is counted anew each time: index and catalog grow beside the segments, and not by commits alone.
        Raises StoreFull if nothing helps: only text, tails and pinned sessions are left.
        """
        if self._budget_bytes is None:
            return False
        n_new = n_more + sum(len(part) for record in plan.records() for part in record)
        n_new += sum(map(len, plan.tails.values()))
        if held_bytes(self.path) + n_new <= self._budget_bytes:
            return False
        left = self._after_moving(n_new, _MOSTLY_DEAD)
        while left > 0:
            self._drop_coldest(left, frozenset(plan.sessions))
            before, left = left, self._after_moving(n_new, _LEAST_DEAD)
            if left >= before:
                raise self._full(left)
        return True

    def _drop_coldest(self, n_bytes: int, written: frozenset[int]) -> None:
        """Drop pages that free `n_bytes` and some more, by holes or, where those give back too little, by moving."""
        assert self._budget_bytes is not None
        options = (self.fingerprint.page_tokens, int(time.time() * 1000))
        with self._catalog.read() as snapshot:
            plan = Plan(snapshot.state())
            made = False
            if self._holes_work:
                spare = self._budget_bytes // _SPARE_SHARE
                made = plan_room(
                    plan, snapshot, self._reading, n_bytes, spare, *options, written=written, frees=hole_bytes
                )
                places = [item.location for item in plan.erasures]
                if sum(map(hole_bytes, places)) < _HOLE_SHARE * sum(map(moved_bytes, places)):
                    plan, made = Plan(snapshot.state()), False
            if not made:  # then a segment's worth at once, so that whole segments die and little is copied
                spare = min(self._segment_bytes, self._budget_bytes // 8)
                if not plan_room(
                    plan, snapshot, self._reading, n_bytes, spare, *options, written=written, frees=moved_bytes
                ):
                    raise self._full(n_bytes)
        plan.end_commit()
        self._writing().commit(plan.state, [], [entry.record for entry in plan.log], plan.put)
        self._writing().erase()

    def _after_moving(self, n_new: int, least_dead: float) -> int:
        """Bytes that are still too many once dead records that holes could not free have been moved away."""
        assert self._budget_bytes is not None
        progress = Moved()
        while (left := held_bytes(self.path) + n_new - self._budget_bytes) > 0:
            with self._catalog.read() as snapshot:
                numbers = snapshot.segments()
            held = {number: held_bytes(segment_path(self.path / SEGMENTS, number)) for number in numbers}
            if not self._move_next(least_dead, progress, held):
                break
        if progress.n_segments:
            self._segments.release_removed()
        return left

    def _full(self, n_bytes: int) -> StoreFull:
        return StoreFull(
            f"{self.path} would exceed its budget of {self._budget_bytes} bytes by {n_bytes}, and only text and pinned "
            "sessions are left: raise the budget, unpin or forget something"
        )
