"""How large a store is, part by part, from the real sizes of its files and the catalog's rows. Reads no records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from livingkv.store.catalog import Catalog
from livingkv.store.disk import errors_named
from livingkv.store.items import PageState
from livingkv.store.making import CATALOG, INDEX, SEGMENTS
from livingkv.store.manifest import read_manifest
from livingkv.store.records import SEGMENT_HEADER_BYTES, Location, record_bytes
from livingkv.store.rows import StoreStats
from livingkv.store.snapshot import Snapshot

_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own


def measure_store(root: Path, catalog: Catalog) -> StoreStats:
    """See Store.stats."""
    with catalog.read() as snapshot:
        sessions = list(snapshot.sessions())
        parts, n_chunks, n_pages = _record_parts(snapshot)
    tails = sum(item.tail_bytes for _, item in sessions)
    parts["record_overhead"] += sum(item.event_bytes for _, item in sessions)
    with errors_named(root):
        segment_bytes, catalog_bytes, index_bytes = (folder_bytes(root / name) for name in (SEGMENTS, CATALOG, INDEX))
        total, held = folder_bytes(root), held_bytes(root)
        manifest = read_manifest(root)
    parts["dead"] = max(0, segment_bytes - sum(parts.values()))  # a file system that compresses may show less
    parts["tails"] = tails
    parts["catalog"] = catalog_bytes - tails
    parts["index"] = index_bytes
    parts["other"] = total - segment_bytes - catalog_bytes - index_bytes
    return StoreStats(
        n_sessions=len(sessions),
        n_tokens=sum(item.n_tokens for _, item in sessions),
        n_bytes=sum(item.n_bytes for _, item in sessions),
        n_sentences=sum(item.n_sentences - item.n_forgotten for _, item in sessions),
        n_pages=n_pages,
        n_chunks=n_chunks,
        size_bytes=sum(parts.values()),
        bytes_by_part=parts,
        held_bytes=held,
        disk_budget_bytes=None if manifest is None else manifest.disk_budget_bytes,
    )


def _record_parts(snapshot: Snapshot) -> tuple[dict[str, int], int, int]:
    """Bytes in segments that the catalog's rows account for, number of chunks, number of pages."""
    parts = dict.fromkeys(("pages", "text", "token_ids", "sentences", "record_overhead"), 0)
    parts["record_overhead"] = SEGMENT_HEADER_BYTES * len(snapshot.segments())
    n_chunks = n_pages = 0
    seen: set[Location] = set()  # forks share records
    for _, _, page in snapshot.pages():
        n_pages += 1
        if page.location in seen or page.state is not PageState.PRESENT:
            continue
        seen.add(page.location)
        parts["pages"] += page.location.length
        parts["record_overhead"] += record_bytes(page.location.length) - page.location.length
    for session_id, _ in snapshot.sessions():
        for _, chunk in snapshot.chunks(session_id):
            n_chunks += 1
            if chunk.location in seen:
                continue
            seen.add(chunk.location)
            parts["text"] += chunk.text_bytes
            parts["token_ids"] += chunk.token_id_bytes
            parts["sentences"] += chunk.span_bytes
            content = chunk.text_bytes + chunk.token_id_bytes + chunk.span_bytes
            parts["record_overhead"] += record_bytes(chunk.location.length) - content
    return parts, n_chunks, n_pages


def folder_bytes(folder: Path) -> int:
    """Sizes of all files below a folder, added up, without the holes where records of segments were given up.

    A file that vanishes meanwhile counts nothing.
    """
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file() and not path.is_symlink():
                status = path.stat()
                has_holes = path.suffix == ".seg" and status.st_blocks * _BLOCK_BYTES < status.st_size
                total += status.st_blocks * _BLOCK_BYTES if has_holes else status.st_size
        except FileNotFoundError:
            continue
    return total


def held_bytes(folder: Path) -> int:
    """What the file system holds of a folder and everything in it, in whole blocks: what a disk budget counts.

    Where it compresses or has holes that is less than the files' sizes; what vanishes meanwhile counts nothing.
    """
    return sum(_held(folder))


def _held(folder: Path) -> Iterator[int]:
    try:
        yield os.lstat(folder).st_blocks * _BLOCK_BYTES
        with os.scandir(folder) as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _held(Path(entry.path))
            continue
        try:
            yield entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            continue
