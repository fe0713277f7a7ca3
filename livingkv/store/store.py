"""The durable store: sessions of token ids, text, sentences, KV pages and tails in one folder.

A `Store` is the only door: it opens, recovers, and passes calls on to `Reading`, `Sentences` and `Committing`. It knows
nothing of models: pages and tails are opaque bytes. Bytes on disk: FORMAT.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from livingkv.errors import InputError, StoreError
from livingkv.results import CheckReport
from livingkv.store.appending import plan_appends, plan_session
from livingkv.store.check import check_store
from livingkv.store.committing import Committing
from livingkv.store.disk import Disk
from livingkv.store.fingerprint import Fingerprint
from livingkv.store.making import SEGMENTS, make, open_catalog, prepare_folder, require_store
from livingkv.store.manifest import read_manifest
from livingkv.store.plan import Plan
from livingkv.store.pruning import StorePruning
from livingkv.store.reading import Reading
from livingkv.store.rebuilding import rebuild_catalog
from livingkv.store.rows import Append, RebuildReport, Sentence, SessionRow, SourceRow, StoreStats, TokenIds
from livingkv.store.segment_reader import SegmentReader, Wanted
from livingkv.store.segment_writer import SegmentWriter
from livingkv.store.sentences import Sentences
from livingkv.store.stats import measure_store
from livingkv.store.writer_lock import WriterLock

SEGMENT_BYTES = 1 << 28
CATALOG_BYTES = 1 << 36
"""Address space for the catalog's map, not disk space; it grows when it is full."""


class Store(StorePruning):
    """An open store; a context manager. Made by `Store.open`.

    Threads may share it: reads run side by side and beside one append. A forked child may not use it: it opens its own.
    Every method raises StoreError after `close`, and in a forked child.
    """

    def __init__(
        self,
        root: Path,
        mode: Literal["read", "write"],
        disk: Disk,
        segment_bytes: int,
        map_bytes: int,
    ) -> None:
        """Use `Store.open`."""
        self.path = root
        self._append_lock = threading.Lock()
        with ExitStack() as stack:
            if mode == "write":
                stack.callback(WriterLock(root).release)
            manifest, self._catalog = open_catalog(root, map_bytes, writable=mode == "write")
            stack.callback(self._catalog.close)
            self.fingerprint = manifest.fingerprint
            self.labels = manifest.labels
            segments = SegmentReader(disk, root / SEGMENTS, manifest.store_id)
            stack.callback(segments.close)
            self._segments = segments
            self._committing: Committing | None = None
            if mode == "write":
                writer = SegmentWriter(disk, root / SEGMENTS, manifest.store_id, segment_bytes)
                stack.callback(writer.close)
                self._committing = Committing(disk, root, self._catalog, writer)
            self._reading = Reading(root, self._catalog, segments, manifest.fingerprint.page_tokens)
            self._sentences = Sentences(self._catalog, self._reading)
            self._disk = disk
            self._budget_bytes = manifest.disk_budget_bytes
            self._segment_bytes = segment_bytes
            self._holes_work = True
            self._closing = stack.pop_all()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        mode: Literal["read", "write"],
        fingerprint: Fingerprint | None = None,
        create: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        catalog_bytes: int = CATALOG_BYTES,
        disk: Disk | None = None,
        labels: Mapping[str, str] | None = None,
        disk_budget_bytes: int | None = None,
    ) -> Store:
        """Open the store at `path`; a writer recovers it first, a reader ignores what no commit covers.

        fingerprint: what the store must have been written with; None accepts what is there.
        create: make the store if it is not there (mode "write", needs a fingerprint).
        labels: notes for a store that is made now, such as the model's name; later `Store.labels`, never compared.
        disk_budget_bytes: `limit_disk` to that (mode "write"); None leaves the budget that the store keeps, if any.
        segment_bytes: size at which a segment is followed by the next. catalog_bytes: first size of the catalog's map.

        Raises StoreNotFound, FingerprintMismatch, FormatUnsupported, StoreLocked, StoreUnwritable, StoreFull,
        RecordDamaged (manifest or catalog lost) or StoreError (somebody else's folder). Nothing was changed then.
        """
        if disk_budget_bytes is not None and mode != "write":
            raise InputError("disk_budget_bytes", f"mode {mode}", 'mode "write" is needed to set a budget')
        if create and (mode != "write" or fingerprint is None):
            raise InputError("create", f"mode {mode}", 'mode "write" and a fingerprint are needed to create a store')
        root, disk = Path(path), disk or Disk()
        if create:
            prepare_folder(disk, root)
        else:
            require_store(root)
        manifest = read_manifest(root)
        if manifest is None and fingerprint is not None:
            lock = WriterLock(root)
            try:
                make(disk, root, fingerprint, catalog_bytes, labels)
            finally:
                lock.release()
        elif manifest is not None and fingerprint is not None:
            manifest.fingerprint.require(fingerprint, root)
        store = cls(root, mode, disk, segment_bytes, catalog_bytes)
        if disk_budget_bytes is not None:
            try:
                store.limit_disk(disk_budget_bytes)
            except BaseException:
                store.close()
                raise
        return store

    @classmethod
    def rebuild_catalog(
        cls, path: str | Path, *, catalog_bytes: int = CATALOG_BYTES, disk: Disk | None = None
    ) -> RebuildReport:
        """Make a lost or unreadable catalog anew from the segments; durable on return. No other file is changed.

        Whole commits come back: sessions, token ids, text, sentences, sources, pages. Tails and weights were in the
        catalog only. The index is to be rebuilt, since ids of forgotten sentences may be given out again.

        Raises StoreError if the catalog is whole, StoreNotFound without a manifest, StoreLocked, StoreFull or
        StoreUnwritable.
        """
        return rebuild_catalog(Path(path), disk or Disk(), catalog_bytes)

    def create_session(self, name: str, *, kv: bool = True) -> SessionRow:
        """A new, empty session; durable on return. `name`: 1 to 255 bytes of printable text.

        kv: False makes it text-only: appends may come without pages and tail, which can be rebuilt later.

        Raises SessionExists, InputError, StoreFull, StoreUnwritable or StoreError.
        """
        with self._append_lock:
            with self._catalog.read() as snapshot:
                plan = plan_session(snapshot, name, _now_ms(), text_only=not kv)
            self._commit(plan)
        return self.session(name)

    def append(self, append: Append) -> None:
        """One durable step of a session: all of it is on disk on return, or none of it exists.

        Raises InputError (a field does not fit the session), SessionNotFound, StoreFull, StoreUnwritable or StoreError.
        The session is unchanged then, and the store usable.
        """
        self.append_all([append])

    def append_all(self, appends: Sequence[Append]) -> None:
        """Several appends, each seeing those before it, in one commit: all or none. Raises as `append`."""
        if not appends:
            return
        with self._append_lock:
            plan = self._planned(appends)
            if self._make_room(plan):
                plan = self._planned(appends)  # what was dropped took sequences
            self._commit(plan)

    def _planned(self, appends: Sequence[Append]) -> Plan:
        with self._catalog.read() as snapshot:
            return plan_appends(snapshot, appends, self.fingerprint.page_tokens, _now_ms())

    def _commit(self, plan: Plan) -> None:
        pages = [page.record for page in plan.pages]
        self._writing().commit(plan.state, pages, [entry.record for entry in plan.log], plan.put)

    def _writing(self) -> Committing:
        if self._committing is None:
            raise StoreError(f"{self.path} is open for reading only: open it for writing")
        return self._committing

    def session(self, name_or_id: str | int) -> SessionRow:
        """A session by its name or id. Raises SessionNotFound."""
        return self._reading.session(name_or_id)

    def sessions(self) -> list[SessionRow]:
        """All sessions, oldest first."""
        return self._reading.sessions()

    def sources(self, session_id: int) -> list[SourceRow]:
        """What a session holds of each of its sources, oldest first. Raises SessionNotFound."""
        return self._reading.sources(session_id)

    def source(self, session_id: int, name: str, digest: str) -> SourceRow | None:
        """What a session holds of one source, or None if nothing. Raises SessionNotFound."""
        return self._reading.source(session_id, name, digest)

    def read_pages(self, session_id: int, pages: Sequence[int]) -> list[bytes]:
        """Page bytes in the order asked for, checksums verified; pages that lie side by side are read at once.

        Raises PageDamaged (the first damaged page, naming session, page, segment and offset), PageDropped for one whose
        KV is not kept (rebuild it from the text), InputError for a page
        that the session does not have, SessionNotFound or FormatUnsupported.
        """
        return self._catalog.settled(lambda: self._reading.read_pages(session_id, pages))

    def locate_pages(self, session_id: int, pages: Sequence[int]) -> list[Wanted]:
        """Where pages stand now and what their records must say, in the order asked for. Raises as `read_pages`.

        For readers with memory of their own (livingkv.tiers), who read and verify with `segments`.
        """
        return self._reading.locate_pages(session_id, pages)

    @property
    def segments(self) -> SegmentReader:
        """The store's open segments, closed with the store."""
        return self._segments

    @property
    def disk(self) -> Disk:
        """The file layer that the store was opened with."""
        return self._disk

    def read_tail(self, session_id: int) -> tuple[int, bytes]:
        """The first token of a session's tail, and its bytes, verified. Raises PageDamaged or SessionNotFound."""
        return self._reading.read_tail(session_id)

    def token_ids(self, session_id: int, token_lo: int, token_hi: int) -> TokenIds:
        """Token ids [token_lo, token_hi) of a session, int32. Raises InputError, RecordDamaged or SessionNotFound."""
        return self._catalog.settled(lambda: self._reading.token_ids(session_id, token_lo, token_hi))

    def text(self, session_id: int, byte_lo: int = 0, byte_hi: int | None = None) -> bytes:
        """Text bytes [byte_lo, byte_hi) of a session, to its end by default, exactly as they were appended.

        Raises InputError, RecordDamaged or SessionNotFound.
        """
        return self._catalog.settled(lambda: self._reading.text(session_id, byte_lo, byte_hi))

    def sentence(self, sentence_id: int) -> Sentence:
        """One sentence. Raises InputError for an id that the store does not have, or RecordDamaged."""
        return self._catalog.settled(lambda: self._sentences.sentence(sentence_id))

    def sentences_after(self, sentence_id: int | None, limit: int) -> list[Sentence]:
        """Up to `limit` sentences with ids above `sentence_id` (None: from the first), by id. Raises RecordDamaged."""
        return self._catalog.settled(lambda: self._sentences.after(sentence_id, limit))

    def neighbours(self, sentence_id: int, before: int, after: int) -> list[Sentence]:
        """The sentence with up to `before` sentences before and `after` behind it, of the same session and source.

        In order, the sentence itself included. Raises as `sentence`.
        """
        return self._catalog.settled(lambda: self._sentences.neighbours(sentence_id, before, after))

    def stats(self) -> StoreStats:
        """Counts, and bytes by part from the real sizes of the files."""
        return measure_store(self.path, self._catalog)

    def check(self) -> CheckReport:
        """Verify every record, the catalog and that they agree. Reads the whole store; never raises for damage."""
        return check_store(self.path, self._disk, self._catalog, self._reading, self._segments, self.fingerprint)

    def close(self) -> None:
        """Close the store and free the writer's lock. A second call does nothing."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _now_ms() -> int:
    return int(time.time() * 1000)
