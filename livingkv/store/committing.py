"""The commit protocol (FORMAT.md, section 7) and recovery: segments are synced before the catalog says so.

Knows the order of writes and how to undo them; refuses to know what the records mean. One thread at a time.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from livingkv.errors import StoreError
from livingkv.store.archive import Archive
from livingkv.store.catalog import Catalog, Changes
from livingkv.store.disk import Disk, Step, errors_named
from livingkv.store.erasing import Erasing
from livingkv.store.items import SegmentItem, State
from livingkv.store.manifest import MANIFEST_DRAFT
from livingkv.store.records import Location, Record, SegmentKind
from livingkv.store.sealing import seal_record
from livingkv.store.segment_writer import SegmentWriter, segment_path

_SEGMENT_NAME = re.compile(r"(\d{8,})\.seg")

_READERS_WAIT_S = 5.0

Put = Callable[[Changes, Sequence[Location], Sequence[Location]], None]
"""Puts a commit's rows, given where its page and its log records stand."""


def segment_number(path: Path) -> int | None:
    """The number in a segment's file name, or None for another file."""
    match = _SEGMENT_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


class Committing:
    """The writing half of a store. Recovers when it is made, and again after a failed commit."""

    def __init__(self, disk: Disk, root: Path, catalog: Catalog, writer: SegmentWriter) -> None:
        self._disk = disk
        self._root = root
        self._catalog = catalog
        self._writer = writer
        self._catalog_is_suspect = False
        self._needs_recovery = True
        self._recover()
        self._drop_unused_keys()
        with contextlib.suppress(StoreError):  # not needed for reading or appending; the next opening tries again
            self.erase()

    def commit(
        self,
        state: State,
        pages: Iterable[Record],
        log: Iterable[Record],
        put: Put,
        key_ids: Mapping[int, bytes] | None = None,
    ) -> None:
        """Write the records and commit the rows that `put` makes; durable on return.

        Records of encrypted sessions are sealed on their way; `key_ids` are the keys of sessions that are new.
        Raises KeyMissing, StoreFull, StoreUnwritable or StoreError; then the store is as before, and this can be called
        again.
        """
        if self._needs_recovery:
            self._recover()
        self._needs_recovery = True
        try:
            key_ids = dict(key_ids or {})
            page_places = self._writer.write(SegmentKind.PAGES, self._sealed(pages, key_ids))
            self._disk.reached(Step.PAGES_WRITTEN)
            log_places = self._writer.write(SegmentKind.LOG, self._sealed(log, key_ids))
            self._disk.reached(Step.LOG_WRITTEN)
            self._writer.sync()
            self._disk.reached(Step.SEGMENTS_SYNCED)

            def apply(changes: Changes) -> None:
                put(changes, page_places, log_places)
                for number, item in self._writer.touched().items():
                    changes.put_segment(number, item)
                changes.put_state(state._replace(next_segment=self._writer.next_segment))

            self._catalog_is_suspect = True
            self._catalog.commit(apply, before_commit=lambda: self._disk.reached(Step.COMMIT_PREPARED))
            self._catalog_is_suspect = False
            self._writer.committed()
            self._needs_recovery = False
        finally:
            if (
                self._needs_recovery
            ):  # an error is on its way to the caller; give the space back now if that is possible
                with contextlib.suppress(StoreError):
                    self._recover()
        self._disk.reached(Step.COMMITTED)

    def _sealed(self, records: Iterable[Record], key_ids: dict[int, bytes]) -> Iterator[Record]:
        def key_id_for(session_id: int) -> bytes:
            if session_id not in key_ids:
                with self._catalog.read() as snapshot:
                    item = snapshot.session(session_id)
                key_ids[session_id] = b"" if item is None else item.key_id
            return key_ids[session_id]

        vault = self._catalog.vault
        assert vault is not None, "a store that is written to has a vault"
        return (seal_record(vault, record, key_id_for) for record in records)

    def replace_segment(
        self, state: State, number: int, kind: SegmentKind, records: Iterable[Record], put: Put
    ) -> None:
        """Move a segment's records to newer ones in one commit, then remove its file. Raises as `commit`."""
        if self._needs_recovery:
            self._recover()
        self._writer.retire(number)

        def put_moved(changes: Changes, page_places: Sequence[Location], log_places: Sequence[Location]) -> None:
            put(changes, page_places, log_places)
            changes.remove_segment(number)

        is_log = kind is SegmentKind.LOG
        self.commit(state, () if is_log else records, records if is_log else (), put_moved)
        path = segment_path(self._root / "segments", number)
        with errors_named(path):
            if not path.is_dir():  # a folder is none of ours
                self._disk.remove(path)
            self._disk.sync_folder(path.parent)
        self._disk.reached(Step.SEGMENT_REMOVED)

    def erase(self) -> None:
        """Erase what commits gave up (FORMAT.md, section 8), keys first; durable on return. Raises StoreError."""
        self._drop_keys()
        Erasing(self._disk, self._root / "segments", self._catalog).run()
        self._leave_archive()
        self._catalog.scrub(_READERS_WAIT_S)
        self._disk.reached(Step.SCRUBBED)

    def _leave_archive(self) -> None:
        """Erase from the archive what commits say is to leave it, and what a broken-off replacement left beside it."""
        archive = Archive(self._disk, self._root)
        archive.drop_draft()
        with self._catalog.read() as snapshot:
            leaving = snapshot.leaving_archive()
        if leaving is not None:
            archive.forget(leaving)
            self._catalog.commit(lambda changes: changes.remove_leaving(), before_commit=lambda: None)

    def _drop_keys(self) -> None:
        """Destroy the keys that commits gave up (FORMAT.md, section 17)."""
        with self._catalog.read() as snapshot:
            listed = snapshot.dropped_keys()
        vault = self._catalog.vault
        if not listed or vault is None:
            return
        left = []
        for key_id, place in listed:
            vault.forget(key_id)
            if not vault.files.destroy(key_id, place):
                left.append((key_id, place))
        if left != listed:
            self._catalog.commit(lambda changes: changes.put_dropped_keys(left), before_commit=lambda: None)

    def _drop_unused_keys(self) -> None:
        """At opening only: later a key may be there whose session is about to be committed."""
        vault = self._catalog.vault
        if vault is not None and vault.files.has_own:
            with self._catalog.read() as snapshot:
                used = {item.key_id for _, item in snapshot.sessions()}
            with contextlib.suppress(StoreError):
                vault.files.remove_unused(used)

    def _recover(self) -> None:
        """Cut everything that the catalog does not cover. Idempotent; raises StoreError."""
        if self._catalog_is_suspect:
            self._catalog.reopen()
            self._catalog_is_suspect = False
        with self._catalog.read() as snapshot:
            segments = snapshot.segments()
            next_segment = snapshot.state().next_segment
        folder = self._root / "segments"
        with errors_named(folder):
            self._disk.make_folder(folder)
            self._disk.remove(self._root / MANIFEST_DRAFT)
            for path in sorted(folder.iterdir()):
                number = segment_number(path)
                if number is not None and not path.is_dir():  # check names a folder
                    self._cut(path, segments.get(number))
            self._writer.begin(segments, next_segment)
        for name in ("catalog.new", "catalog.lost"):  # of a rebuilding: the catalog in use is whole
            shutil.rmtree(self._root / name, ignore_errors=True)
        self._needs_recovery = False
        self._disk.reached(Step.RECOVERED)

    def _cut(self, path: Path, item: SegmentItem | None) -> None:
        if item is None:
            self._disk.remove(path)
            self._disk.reached(Step.SEGMENT_CUT)
        elif path.stat().st_size > item.committed:
            descriptor = self._disk.open_existing(path, writable=True)
            try:
                self._disk.truncate(descriptor, item.committed)
            finally:
                self._disk.close(descriptor)
            self._disk.reached(Step.SEGMENT_CUT)

    def close(self) -> None:
        """Close the segment files."""
        self._writer.close()
