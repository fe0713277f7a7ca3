"""The verbs that keep a store in shape: defragmentation, living weights, and room under a disk budget."""

from __future__ import annotations

import time
from collections.abc import Iterable

from livingkv.errors import StoreFull
from livingkv.store.defragmenting import Living, OldNames, movable
from livingkv.store.forget_life import StoreForgetting
from livingkv.store.making import SEGMENTS
from livingkv.store.plan import Plan
from livingkv.store.quota import plan_room
from livingkv.store.rows import DefragReport, SentenceWeight
from livingkv.store.segment_reader import SegmentReader
from livingkv.store.sentences import require_sentence
from livingkv.store.stats import folder_bytes
from livingkv.store.weights import HALF_LIFE_S, hottest, recharge

_SPARE_SHARE = 50
"""Room is made for a fiftieth of the budget at once, so that not every append has to make some."""


class StoreUpkeep(StoreForgetting):
    """Base of `Store`: upkeep."""

    _segments: SegmentReader
    _budget_bytes: int | None
    _used_bytes: int

    def defrag(self, *, least_dead: float = 0.05) -> DefragReport:
        """Move what lives out of segments whose share of dead bytes is at least `least_dead`, and remove their files.

        A segment that holds a name which its session bore before is moved too: that name is in no file then. One commit
        for each segment; reads, and appends between two segments, go on meanwhile. Broken off, nothing is lost. Needs
        free space for the living part of one segment. A segment with a damaged record stays, and is named.
        Raises StoreFull, StoreUnwritable or StoreError.
        """
        folder = self.path / SEGMENTS
        before = folder_bytes(folder)
        done: set[int] = set()
        problems: list[str] = []
        n_segments = n_records = 0
        old_names = OldNames(self._segments)
        while True:
            with self._append_lock:
                self._writing().erase()
                with self._catalog.read() as snapshot:
                    living = Living(snapshot)
                left = [number for number in living.victims(least_dead, old_names) if number not in done]
                if not left:
                    break
                done.add(left[0])
                move = movable(self._disk, folder, left[0], living)
                if isinstance(move, str):
                    problems.append(move)
                    continue
                kind = living.segments[left[0]].kind
                self._writing().replace_segment(living.state, left[0], kind, move.records(), move.put)
                n_segments += 1
                n_records += len(move.places)
        self._segments.release_removed()
        return DefragReport(n_segments, n_records, before, folder_bytes(folder), tuple(problems))

    def recharge(self, sentence_ids: Iterable[int], *, half_life_s: float = HALF_LIFE_S) -> None:
        """Count one recall of each sentence: its weight, decayed until now, grows by 1. One commit; durable on return.

        Raises InputError for an unknown id; nothing is changed then.
        """
        wanted = set(sentence_ids)
        now_ms = int(time.time() * 1000)
        with self._append_lock:
            self._writing()
            with self._catalog.read() as snapshot:
                for sentence_id in wanted:
                    require_sentence(snapshot, sentence_id)
            self._catalog.commit(
                lambda changes: recharge(changes, wanted, now_ms, half_life_s), before_commit=lambda: None
            )

    def hottest(self, limit: int, *, half_life_s: float = HALF_LIFE_S) -> list[SentenceWeight]:
        """The warmest sentences, warmest first. Those that were never recalled are not among them."""
        with self._catalog.read() as snapshot:
            return hottest(snapshot, limit, int(time.time() * 1000), half_life_s)

    def _make_room(self, plan: Plan, n_more: int = 0) -> bool:
        """Before a commit, under the append lock: drop the coldest pages if the budget would be exceeded; True if so.

        Raises StoreFull if that does not help: only text, tails and pinned sessions are left. Nothing is changed then.
        """
        n_new = n_more + sum(len(part) for record in plan.records() for part in record)
        n_new += sum(map(len, plan.tails.values()))
        if self._budget_bytes is None:
            return False
        has_dropped = False
        if self._used_bytes + n_new > self._budget_bytes:
            self._used_bytes = folder_bytes(self.path)
            missing = self._used_bytes + n_new - self._budget_bytes
            if missing > 0:
                self._drop_coldest(missing)
                self._used_bytes = folder_bytes(self.path)
                has_dropped = True
        self._used_bytes += n_new
        return has_dropped

    def _drop_coldest(self, n_bytes: int) -> None:
        page_tokens = self.fingerprint.page_tokens
        assert self._budget_bytes is not None
        with self._catalog.read() as snapshot:
            plan = Plan(snapshot.state())
            now_ms = int(time.time() * 1000)
            spare = n_bytes + self._budget_bytes // _SPARE_SHARE
            options = (page_tokens, now_ms)
            if not plan_room(plan, snapshot, self._reading, spare, *options) and not plan_room(
                plan, snapshot, self._reading, n_bytes, *options
            ):
                raise StoreFull(
                    f"{self.path} would exceed its budget of {self._budget_bytes} bytes by {n_bytes}, and only text "
                    "and pinned sessions are left: raise the budget, unpin or forget something"
                )
        plan.end_commit()
        self._writing().commit(plan.state, [], [entry.record for entry in plan.log], plan.put)
        self._writing().erase()
