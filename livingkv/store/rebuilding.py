"""Rebuilding a lost or unreadable catalog from the segments (FORMAT.md, section 9).

Knows which records count and how the new catalog replaces the old one; refuses to guess: what is not there is said.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from livingkv.errors import FormatUnsupported, KeyMissing, RecordDamaged, StoreError, StoreNotFound
from livingkv.regular_files import reading
from livingkv.store.catalog import Catalog, Changes
from livingkv.store.committing import segment_number
from livingkv.store.disk import Disk, Step, errors_named
from livingkv.store.events import Forgotten, unpack_event
from livingkv.store.items import Erasure, SegmentItem, State
from livingkv.store.key_files import KeyFiles
from livingkv.store.making import CATALOG, SEGMENTS, has_catalog_file
from livingkv.store.manifest import Manifest, read_manifest
from livingkv.store.records import (
    SEGMENT_HEADER_BYTES,
    Location,
    RecordFlags,
    RecordType,
    SegmentKind,
    unpack_segment_header,
)
from livingkv.store.replayed_session import logged_chunk
from livingkv.store.replaying import LogEntry, PageRecords, Replay, by_page
from livingkv.store.rows import RebuildReport
from livingkv.store.sealing import Place, Vault, key_id_of
from livingkv.store.segment_walk import FoundRecord, SegmentWalk
from livingkv.store.snapshot import Snapshot
from livingkv.store.writer_lock import WriterLock

CATALOG_DRAFT = "catalog.new"
CATALOG_LOST = "catalog.lost"


@dataclass
class _Found:
    """What the segments hold."""

    kinds: dict[int, SegmentKind] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    headers: dict[int, list[FoundRecord]] = field(default_factory=dict)
    log: dict[int, LogEntry] = field(default_factory=dict)  # by sequence
    pages: list[tuple[int, int, int, Location]] = field(default_factory=list)
    last_commit: int = 0
    next_sequence: int = 1
    problems: list[str] = field(default_factory=list)
    key_ids: dict[int, bytes] = field(default_factory=dict)  # of encrypted sessions
    locked: dict[int, KeyMissing] = field(default_factory=dict)  # sessions that cannot be read


def rebuild_catalog(root: Path, disk: Disk, map_bytes: int, key_folder: Path | None = None) -> RebuildReport:
    """See Store.rebuild_catalog."""
    manifest = read_manifest(root)
    if manifest is None:
        raise StoreNotFound(f"no store at {root}: without its manifest.json a catalog cannot be rebuilt")
    lock = WriterLock(root)
    try:
        _require_lost(root, map_bytes)
        vault = Vault(KeyFiles(disk, root, manifest.store_id, key_folder))
        found = _read_segments(disk, root, manifest, vault)
        _require_keys(found)
        counted = [found.log[sequence] for sequence in sorted(found.log) if sequence <= found.last_commit]
        replay = Replay(counted)
        pages = by_page([page for page in found.pages if page[2] <= found.last_commit])
        with errors_named(root):
            shutil.rmtree(root / CATALOG_DRAFT, ignore_errors=True)
            disk.make_folder(root / CATALOG_DRAFT)
        _write(disk, root, manifest, found, replay, pages, map_bytes, vault)
        _swap(disk, root)
    finally:
        lock.release()
    rows = [session.session_item(manifest.fingerprint.page_tokens) for session in replay.sessions.values()]
    return RebuildReport(
        path=str(root),
        n_sessions=len(rows),
        n_tokens=sum(row.n_tokens for row in rows),
        n_pages=sum(row.n_sealed_tokens for row in rows) // manifest.fingerprint.page_tokens,
        sessions_without_tail=tuple(row.name for row in rows if row.n_tokens > row.n_sealed_tokens),
        problems=tuple(found.problems + replay.problems),
    )


def _require_lost(root: Path, map_bytes: int) -> None:
    """Raise StoreError if the catalog is whole: rebuilding would lose tails, weights and requests for nothing."""
    if not has_catalog_file(root):
        return
    with contextlib.suppress(RecordDamaged):
        try:
            catalog = Catalog(root / CATALOG, map_bytes, writable=False)
        except StoreError:
            return
        try:
            with catalog.read() as snapshot:
                is_whole = snapshot.identity() is not None and not any(snapshot.damaged_entries())
        finally:
            catalog.close()
        if is_whole:
            raise StoreError(f"the catalog of {root} is whole: nothing has to be rebuilt")


def _require_keys(found: _Found) -> None:
    """Raise KeyMissing for a session that is not forgotten and cannot be read: it would be lost."""
    gone = {entry.session_id for entry in found.log.values() if isinstance(entry.content, Forgotten)}
    for session_id, error in found.locked.items():
        if session_id not in gone:
            raise KeyMissing(f"the catalog cannot be rebuilt: {error}") from error


def _read_segments(disk: Disk, root: Path, manifest: Manifest, vault: Vault) -> _Found:
    found = _Found()
    folder = root / SEGMENTS
    paths = {segment_number(path): path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    for number, path in paths.items():
        if number is not None:
            with errors_named(path):
                walk = SegmentWalk(disk, path, number)
                try:
                    _read_segment(path, number, walk, manifest, found, vault)
                finally:
                    walk.close()
    return found


def _read_segment(path: Path, number: int, walk: SegmentWalk, manifest: Manifest, found: _Found, vault: Vault) -> None:
    with reading(path) as file:
        head = file.read(SEGMENT_HEADER_BYTES)
    try:
        header = unpack_segment_header(head, number)
        if header.store_id != manifest.store_id:
            found.problems.append(f"segment {number}: belongs to another store")
            return
    except RecordDamaged as error:
        found.problems.append(str(error))
    records = []
    for record in walk:
        if record.end > walk.size:
            walk.problems.append(f"segment {number} offset {record.location.offset}: the segment ends inside a record")
            break
        records.append(record)
        _take(record, walk, found, vault)
    is_log = any(record.header.record_type in (RecordType.SESSION, RecordType.CHUNK) for record in records)
    found.kinds[number] = SegmentKind.LOG if is_log else SegmentKind.PAGES
    found.sizes[number] = walk.size
    found.headers[number] = records
    found.problems += walk.problems


def _take(record: FoundRecord, walk: SegmentWalk, found: _Found, vault: Vault) -> None:
    header = record.header
    if header.record_type == RecordType.PAGE:
        found.pages.append((header.session_id, header.number, header.sequence, record.location))
        return
    if header.record_type not in (RecordType.SESSION, RecordType.CHUNK):
        return
    found.next_sequence = max(found.next_sequence, header.sequence + 1)
    if header.sequence in found.log:  # a copy that was made to save space
        return
    try:
        payload, key_id = walk.payload(record), b""
        if header.flags & RecordFlags.SEALED:
            key_id = found.key_ids[header.session_id] = key_id_of(payload)
            payload = vault.open(key_id, Place(header.record_type, header.session_id, header.number), payload)
        place = (header.session_id, header.sequence, record.location)
        content = unpack_event(payload) if header.record_type == RecordType.SESSION else logged_chunk(*place, payload)
    except KeyMissing as error:
        found.locked[header.session_id] = error
        if header.flags & RecordFlags.ENDS_COMMIT:
            found.last_commit = max(found.last_commit, header.sequence)
        return
    except (RecordDamaged, FormatUnsupported) as error:
        walk.problems.append(f"session {header.session_id}: {error}")
        return
    entry = LogEntry(header.sequence, header.session_id, header.number, record.location, content, key_id)
    found.log[header.sequence] = entry
    if header.flags & RecordFlags.ENDS_COMMIT:
        found.last_commit = max(found.last_commit, header.sequence)


def _segment_item(found: _Found, number: int) -> SegmentItem:
    """A segment as far as commits cover it: to the end of its last record that counts."""
    records = found.headers[number]
    n_counted = next((n for n in range(len(records), 0, -1) if records[n - 1].header.sequence <= found.last_commit), 0)
    committed = records[n_counted - 1].end if n_counted else min(SEGMENT_HEADER_BYTES, found.sizes[number])
    return SegmentItem(found.kinds[number], n_counted, committed)


def _unneeded(found: _Found, rows: Snapshot) -> list[Erasure]:
    """Records that no row leads to, such as those of a forgetting that was broken off."""
    needed = {item.location for _, _, item in rows.pages()}
    for session_id, _ in rows.sessions():
        needed |= {item.location for _, item in rows.chunks(session_id)}
        needed |= {place for _, place in rows.events(session_id)}
    return [
        Erasure(record.location, overwrite=True)
        for number, records in found.headers.items()
        for record in records[: _segment_item(found, number).n_records]
        if record.location not in needed and record.header.record_type != RecordType.VOID
    ]


def _write(
    disk: Disk,
    root: Path,
    manifest: Manifest,
    found: _Found,
    replay: Replay,
    pages: PageRecords,
    map_bytes: int,
    vault: Vault,
) -> None:
    page_tokens = manifest.fingerprint.page_tokens

    def apply(changes: Changes) -> None:
        changes.put_identity(manifest.identity())
        next_segment = max(found.kinds, default=0) + 1
        next_session = max([*replay.sessions, *(entry.session_id for entry in found.log.values())], default=0) + 1
        changes.put_state(State(next_session, next_segment, found.next_sequence, replay.next_sentence))
        for number in found.kinds:
            changes.put_segment(number, _segment_item(found, number))
        for session_id, session in replay.sessions.items():
            row = session.session_item(page_tokens)
            changes.put_session(session_id, row)
            changes.put_name(row.name, session_id)
            for event, place in session.events.items():
                changes.put_event(session_id, event, place)
            for source, item in enumerate(session.source_items()):
                changes.put_source(session_id, source, item)
            for chunk_number, chunk in enumerate(session.chunks):
                changes.put_chunk(session_id, chunk_number, chunk.item)
            for page, place_of_page in enumerate(replay.pages(session, row.n_sealed_tokens // page_tokens, pages)):
                changes.put_page(session_id, page, place_of_page)
        for erasure in _unneeded(found, changes):
            changes.put_erasure(erasure)
        unused = set(found.key_ids.values()).difference(each.key_id for each in replay.sessions.values())
        places = ((key_id, vault.files.place(key_id)) for key_id in sorted(unused))
        changes.put_dropped_keys([(key_id, place) for key_id, place in places if place is not None])

    problems = len(replay.problems)
    catalog = Catalog(root / CATALOG_DRAFT, map_bytes, writable=True, vault=vault)
    try:
        catalog.commit(apply, before_commit=lambda: disk.reached(Step.COMMIT_PREPARED))
    finally:
        catalog.close()
    replay.problems[problems:] = dict.fromkeys(replay.problems[problems:])  # `apply` may have run twice
    with errors_named(root / CATALOG_DRAFT):
        disk.sync_folder(root / CATALOG_DRAFT)


def _swap(disk: Disk, root: Path) -> None:
    """Put the new catalog in place. Broken off between, the store has no catalog and the next rebuilding makes one."""
    with errors_named(root):
        shutil.rmtree(root / CATALOG_LOST, ignore_errors=True)
        if (root / CATALOG).exists():
            disk.rename(root / CATALOG, root / CATALOG_LOST)
        disk.reached(Step.CATALOG_REMOVED)
        disk.rename(root / CATALOG_DRAFT, root / CATALOG)
        disk.sync_folder(root)
        disk.reached(Step.CATALOG_REBUILT)
        shutil.rmtree(root / CATALOG_LOST, ignore_errors=True)
