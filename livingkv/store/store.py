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
from livingkv.store.appending import plan_appends, plan_session
from livingkv.store.catalog import REQUESTS_KEPT_MS
from livingkv.store.committing import Committing
from livingkv.store.disk import Disk
from livingkv.store.fingerprint import Fingerprint
from livingkv.store.items import StoredRequest
from livingkv.store.making import SEGMENTS, make, open_catalog, prepare_folder, require_store
from livingkv.store.manifest import read_manifest
from livingkv.store.plan import Plan
from livingkv.store.pruning import StorePruning
from livingkv.store.reading import Reading
from livingkv.store.rebuilding import rebuild_catalog
from livingkv.store.rows import Append, IdempotencyKey, RebuildReport, SessionRow
from livingkv.store.segment_reader import SegmentReader
from livingkv.store.segment_writer import SegmentWriter
from livingkv.store.sentences import Sentences
from livingkv.store.store_path import store_path
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
        key_folder: Path | None = None,
    ) -> None:
        """Use `Store.open`."""
        self.path = root
        self._append_lock = threading.Lock()
        with ExitStack() as stack:
            if mode == "write":
                stack.callback(WriterLock(root).release)
            manifest, self._catalog = open_catalog(
                disk, root, map_bytes, writable=mode == "write", key_folder=key_folder
            )
            self._manifest = manifest
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
            assert self._catalog.vault is not None, "an opened catalog has a vault"
            self._vault = self._catalog.vault
            self._reading = Reading(root, self._catalog, segments, manifest.fingerprint.page_tokens, self._vault)
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
        key_folder: str | Path | None = None,
    ) -> Store:
        """Open the store at `path`; a writer recovers it first, a reader ignores what no commit covers.

        fingerprint: what the store must have been written with; None accepts what is there.
        create: make the store if it is not there (mode "write", needs a fingerprint).
        labels: notes for a store that is made now, such as the model's name; later `Store.labels`, never compared.
        disk_budget_bytes: `limit_disk` to that (mode "write"); None leaves the budget that the store keeps, if any.
        key_folder: where the keys of encrypted sessions are looked for and made, outside of the store. None: in it,
        where whoever holds the store holds the keys, too.
        segment_bytes: size at which a segment is followed by the next. catalog_bytes: first size of the catalog's map.

        Raises StoreNotFound, FingerprintMismatch, FormatUnsupported, StoreLocked, StoreUnwritable, StoreFull,
        RecordDamaged (manifest or catalog lost) or StoreError (somebody else's folder). Nothing was changed then.
        """
        if disk_budget_bytes is not None and mode != "write":
            raise InputError("disk_budget_bytes", f"mode {mode}", 'mode "write" is needed to set a budget')
        if create and (mode != "write" or fingerprint is None):
            raise InputError("create", f"mode {mode}", 'mode "write" and a fingerprint are needed to create a store')
        root, disk = store_path(path), disk or Disk()
        if create:
            prepare_folder(disk, root)
        else:
            require_store(root)
        manifest = read_manifest(root)
        if manifest is None and fingerprint is not None:
            _make_locked(disk, root, fingerprint, catalog_bytes, labels)
        elif manifest is not None and fingerprint is not None:
            manifest.fingerprint.require(fingerprint, root)
        keys = None if key_folder is None else Path(key_folder)
        store = cls(root, mode, disk, segment_bytes, catalog_bytes, keys)
        if disk_budget_bytes is not None:
            with ExitStack() as undo:
                undo.callback(store.close)
                store.limit_disk(disk_budget_bytes)
                undo.pop_all()
        return store

    @classmethod
    def rebuild_catalog(
        cls,
        path: str | Path,
        *,
        catalog_bytes: int = CATALOG_BYTES,
        disk: Disk | None = None,
        key_folder: str | Path | None = None,
    ) -> RebuildReport:
        """Make a lost or unreadable catalog anew from the segments; durable on return. No other file is changed.

        Whole commits come back: sessions, token ids, text, sentences, sources, pages. Tails and weights were in the
        catalog only. The index is to be rebuilt, since ids of forgotten sentences may be given out again.

        Raises StoreError if the catalog is whole, StoreNotFound without a manifest, KeyMissing without the keys of all
        encrypted sessions, StoreLocked, StoreFull or StoreUnwritable.
        """
        keys = None if key_folder is None else Path(key_folder)
        return rebuild_catalog(store_path(path), disk or Disk(), catalog_bytes, keys)

    def create_session(
        self, name: str, *, kv: bool = True, encrypt: bool = False, once: IdempotencyKey | None = None
    ) -> SessionRow:
        """A new, empty session; durable on return. `name`: 1 to 255 bytes of printable text. once: as for `append_all`.

        kv: False makes it text-only: appends may come without pages and tail, which can be rebuilt later.
        encrypt: seal all of its content with a key of its own (FORMAT.md, section 17).

        Raises KeyMissing (encrypt, and no package `cryptography`), SessionExists, InputError, StoreFull,
        StoreUnwritable or StoreError.
        """
        with self._append_lock:
            with self._catalog.read() as snapshot:
                plan = plan_session(snapshot, name, _now_ms(), text_only=not kv)
            if encrypt:
                self._encrypt(plan)
            if once is not None:
                plan.note_request(once)
            self._commit(plan)
        return self.session(name)

    def append(self, append: Append) -> range:
        """One durable step of a session: all of it is on disk on return, or none of it exists. Answers the ids of its
        sentences.

        Raises InputError (a field does not fit the session), SessionNotFound, StoreFull, StoreUnwritable or StoreError.
        The session is unchanged then, and the store usable.
        """
        return self.append_all([append])

    def append_all(self, appends: Sequence[Append], once: IdempotencyKey | None = None) -> range:
        """Several appends, each seeing those before it, in one commit: all or none. Answers and raises as `append`.

        once: kept in the same commit, for `request` to find, in the place of what was stored under this key before.
        Without appends nothing is kept.
        """
        if not appends:
            return range(0)
        with self._append_lock:
            plan = self._planned(appends)
            if self._make_room(plan):
                plan = self._planned(appends)  # what was dropped took sequences
            end = plan.state.next_sentence
            stored = range(end - sum(len(append.sentences) for append in appends), end)
            if once is not None:
                plan.note_request(once, stored)
            self._commit(plan)
        return stored

    def request(self, once: IdempotencyKey) -> StoredRequest | None:
        """What a request of this key stored within a day from now, or None: also of the day ahead, since a clock may
        have been put back. Whether it asked the same is for the caller to compare."""
        with self._catalog.read() as snapshot:
            found = snapshot.request(once.key)
        return found if found is not None and abs(_now_ms() - found.stored_ms) < REQUESTS_KEPT_MS else None

    def _planned(self, appends: Sequence[Append]) -> Plan:
        with self._catalog.read() as snapshot:
            return plan_appends(snapshot, appends, self.fingerprint.page_tokens, _now_ms())

    def _commit(self, plan: Plan) -> None:
        pages = [page.record for page in plan.pages]
        log = [entry.record for entry in plan.log]
        self._writing().commit(plan.state, pages, log, plan.put, plan.key_ids())

    def _writing(self) -> Committing:
        if self._committing is None:
            raise StoreError(f"{self.path} is open for reading only: open it for writing")
        return self._committing

    def close(self) -> None:
        """Close the store and free the writer's lock. A second call does nothing."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _make_locked(
    disk: Disk, root: Path, fingerprint: Fingerprint, catalog_bytes: int, labels: Mapping[str, str] | None
) -> None:
    """Make the store of a prepared folder under the writer's lock."""
    lock = WriterLock(root)
    try:
        make(disk, root, fingerprint, catalog_bytes, labels)
    finally:
        lock.release()


def _now_ms() -> int:
    return int(time.time() * 1000)
