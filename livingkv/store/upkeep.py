"""The verbs that keep a store in shape: defragmentation and living weights."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from livingkv.store.check_segments import SegmentCheck
from livingkv.store.defragmenting import Living, OldNames, movable
from livingkv.store.forget_life import StoreForgetting
from livingkv.store.making import SEGMENTS
from livingkv.store.rows import DefragReport, SentenceWeight
from livingkv.store.segment_reader import SegmentReader
from livingkv.store.sentences import require_sentence
from livingkv.store.stats import folder_bytes
from livingkv.store.weights import HALF_LIFE_S, hottest, recharge


@dataclass(slots=True)
class Moved:
    """What was moved so far; segments in `done` are not tried again."""

    done: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    n_segments: int = 0
    n_records: int = 0


class StoreUpkeep(StoreForgetting):
    """Base of `Store`: upkeep."""

    _segments: SegmentReader

    def defrag(self, *, least_dead: float = 0.05) -> DefragReport:
        """Move what lives out of segments whose share of dead bytes is at least `least_dead`, and remove their files.

        A segment that holds a name which its session bore before is moved too: that name is in no file then. One commit
        for each segment; reads, and appends between two segments, go on meanwhile. Broken off, nothing is lost. Needs
        free space for the living part of one segment. A segment with a damaged record stays, and is named.
        Raises StoreFull, StoreUnwritable or StoreError.
        """
        before = folder_bytes(self.path / SEGMENTS)
        progress, old_names = Moved(), OldNames(self._segments)
        while True:
            with self._append_lock:
                self._writing().erase()
                if not self._move_next(least_dead, progress, old_names=old_names):
                    break
        self._segments.release_removed()
        after = folder_bytes(self.path / SEGMENTS)
        return DefragReport(progress.n_segments, progress.n_records, before, after, tuple(progress.problems))

    def _move_next(
        self,
        least_dead: float,
        progress: Moved,
        held: Mapping[int, int] | None = None,
        old_names: OldNames | None = None,
    ) -> bool:
        """Move what lives out of the segment with the most dead bytes, under the append lock. False if none is left.

        held: what each segment takes on disk, if the holes in it are not to count. old_names: given if a segment that
        holds one is to be moved, too.
        """
        with self._catalog.read() as snapshot:
            living = Living(snapshot)
        left = [number for number in living.victims(least_dead, held, old_names) if number not in progress.done]
        if not left:
            return False
        progress.done.add(left[0])
        self._move(left[0], living, progress)
        return True

    def _move(self, number: int, living: Living, progress: Moved) -> None:
        """Move what lives out of a segment, or note why it stays."""
        move = movable(self._disk, self.path / SEGMENTS, number, living)
        if isinstance(move, str):
            progress.problems.append(move)
            return
        self._writing().replace_segment(living.state, number, living.segments[number].kind, move.records(), move.put)
        progress.n_segments += 1
        progress.n_records += len(move.places)

    def mend_segments(self) -> tuple[int, ...]:
        """Move what lives out of segments whose file is damaged, short or gone, and remove the file. Their numbers.

        A segment stays where a record that is needed cannot be read: `check` names it. One commit for each segment;
        broken off, nothing is lost. Raises StoreFull, StoreUnwritable or StoreError.
        """
        mended = []
        with self._append_lock:
            self._writing().erase()
            with self._catalog.read() as snapshot:
                segments, living = snapshot.segments(), Living(snapshot)
            known = {number: {place.offset for place in living.rows[number]} for number in segments}
            for number, item in segments.items():
                if SegmentCheck(self._disk, self.path, {number: item}, {number: known[number]}).problems():
                    moved = Moved()
                    with self._catalog.read() as snapshot:
                        self._move(number, Living(snapshot), moved)
                    mended += [number] if moved.n_segments else []
        self._segments.release_removed()
        return tuple(mended)

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
