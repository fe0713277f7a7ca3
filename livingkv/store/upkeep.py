"""The verbs that keep a store in shape: defragmentation."""

from __future__ import annotations

from livingkv.store.defragmenting import Living, movable
from livingkv.store.disk import Disk
from livingkv.store.forget_life import StoreForgetting
from livingkv.store.making import SEGMENTS
from livingkv.store.rows import DefragReport
from livingkv.store.segment_reader import SegmentReader
from livingkv.store.stats import folder_bytes


class StoreUpkeep(StoreForgetting):
    """Base of `Store`: upkeep."""

    _disk: Disk
    _segments: SegmentReader

    def defrag(self, *, least_dead: float = 0.05) -> DefragReport:
        """Move what lives out of segments whose share of dead bytes is at least `least_dead`, and remove their files.

        One commit for each segment; reads, and appends between two segments, go on meanwhile. Broken off, nothing is
        lost. Needs free space for the living part of one segment. A segment with a damaged record stays, and is named.
        Raises StoreFull, StoreUnwritable or StoreError.
        """
        folder = self.path / SEGMENTS
        before = folder_bytes(folder)
        done: set[int] = set()
        problems: list[str] = []
        n_segments = n_records = 0
        while True:
            with self._append_lock:
                self._writing().erase()
                with self._catalog.read() as snapshot:
                    living = Living(snapshot)
                left = [number for number in living.victims(least_dead) if number not in done]
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
