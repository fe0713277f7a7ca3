"""Migration: a store's kept text read again by another model or codec, into a new store that then takes its place.

Knows the portable chunks of sessions and how a session is read; the old store is kept beside the new one until somebody
removes it. Nothing of the old store is changed before the new one is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from livingkv.conversation_mark import DIGEST, SOURCE
from livingkv.errors import InputError, StoreError
from livingkv.home import Home
from livingkv.model_choice import ModelChoice
from livingkv.models import LoadedModel
from livingkv.results import Migrated
from livingkv.session_reader import Origin, SessionReader
from livingkv.settings import Settings
from livingkv.store import Append, Disk, PortableChunk, SessionRow, Store
from livingkv.store.disk import errors_named
from livingkv.store.store_path import BEFORE_MIGRATION, MIGRATING, real_path, swap, swap_broke_off
from livingkv.store.writer_lock import WriterLock
from livingkv.text import split_sentences


def migrate(
    path: Path,
    *,
    model: str | ModelChoice | LoadedModel | None,
    settings: Settings,
    progress: Callable[[str, int, int], None] | None = None,
) -> Migrated:
    """Read every session of the store at `path` again with `model` and the settings' codec, then swap. Blocks for
    as long as reading the text takes; broken off, the old store stands and the next call begins anew, or finishes
    the swap. Pins and the archive come along; weights begin anew, and sentences have new ids.

    model: None keeps the store's, and its weights and positions where they are not chosen. `progress` gets a session's
    name, sessions done and in all.
    Raises InputError when an old store of an earlier migration is still beside it, StoreError or ModelError.
    """
    root = real_path(path)
    finish_swap(root)
    new, old = (root.with_name(root.name + suffix) for suffix in (MIGRATING, BEFORE_MIGRATION))
    if old.exists():
        raise InputError("store", old, "an earlier migration left it: check the new store, then remove it")
    source = Home(root, None, Settings(key_folder=settings.key_folder), read_only=False, create=False)
    try:
        rows = source.store().sessions()
        before = sum(row.n_tokens for row in rows)
        with errors_named(new):
            if new.exists():
                shutil.rmtree(new)
        after = _copy_sessions(source, rows, new, model, settings, progress)
    finally:
        source.close()
    _swap_unchanged(root, rows, settings)
    return Migrated(str(path), str(old), len(rows), before, after)


def finish_swap(path: Path) -> None:
    """Put the new store in its place where a migration broke off between its last two steps. Raises StoreError."""
    root = real_path(path)
    with errors_named(root):
        if swap_broke_off(root):
            swap(Disk(), root)


def _swap_unchanged(root: Path, rows: list[SessionRow], settings: Settings) -> None:
    """Swap, unless somebody wrote to the old store after it was read and closed. Raises StoreLocked or StoreError."""
    lock = WriterLock(root)
    try:
        with Store.open(root, mode="read", key_folder=settings.key_folder) as store:
            if store.sessions() != rows:
                raise StoreError(f"{root} was written to while it was migrated, and stands: migrate again")
        swap(Disk(), root)
    finally:
        lock.release()


def _copy_sessions(
    source: Home,
    rows: list[SessionRow],
    new: Path,
    model: str | ModelChoice | LoadedModel | None,
    settings: Settings,
    progress: Callable[[str, int, int], None] | None,
) -> int:
    chosen = model
    if not isinstance(model, LoadedModel):
        chosen = ModelChoice.of(model)
        if chosen.spec is None:
            chosen = chosen.as_in(source.store().fingerprint, source.model_label)
    if settings.embedder is None:
        settings = replace(settings, embedder=source.index.embedder_name())
    target = Home(new, chosen, settings, read_only=False, create=True)
    try:
        made = target.writable_store()
        if settings.disk_budget_bytes is None:
            made.limit_disk(source.store().disk_budget_bytes)
        _prepare_sessions(source, rows, target)
        for done, row in enumerate(rows, 1):
            _read_session(target, row, source.store().portable_chunks(row.session_id))
            if progress is not None:
                progress(row.name, done, len(rows))
        target.index.feed()
        return sum(row.n_tokens for row in target.store().sessions())
    finally:
        target.close()


def _prepare_sessions(source: Home, rows: list[SessionRow], target: Home) -> None:
    """Make all sessions, empty, pinned as they were; and the archive of what was pruned of them."""
    made = {}
    for row in rows:
        new = target.session_for_writing(row.name, kv=not row.text_only, encrypt=row.encrypted)
        made[row.session_id] = new.session_id
        if row.pinned:
            target.store().pin(new.session_id)
    archived = source.store().archived()
    for each in archived:
        if each.sealed:
            source.store().require_key(each.session_id)
    target.store().adopt_archived([replace(each, session_id=made.get(each.session_id, 0)) for each in archived])


def _read_session(target: Home, row: SessionRow, chunks: Iterator[PortableChunk]) -> None:
    """Read one session into the new store, chunk by chunk; one commit for each chunk, one for each turn."""
    made = target.session_for_writing(row.name, kv=not row.text_only, encrypt=row.encrypted)
    if row.text_only:
        _append_all(target, SessionReader.of(target.engine(), None, made), _turns(chunks))
        return
    for is_document, turns in groupby(_turns(chunks), lambda turn: turn[0].role == "document"):
        now = target.store().session(made.session_id)
        with target.hot_window(now, document=is_document) as hot:
            _append_all(target, SessionReader.of(target.engine(), hot, now), turns)


def _append_all(target: Home, reader: SessionReader, turns: Iterable[list[PortableChunk]]) -> None:
    for turn in turns:
        target.store().append_all([_read_chunk(reader, chunk) for chunk in turn])
    if reader.has_framing:
        target.store().append(reader.flush())


def _turns(chunks: Iterator[PortableChunk]) -> Iterator[list[PortableChunk]]:
    """A document chunk alone; a user chunk with the assistant chunk that answers it."""
    pending: list[PortableChunk] = []
    for is_said, alike in groupby(chunks, lambda chunk: chunk.role in ("user", "assistant")):
        for chunk in alike:
            pending.append(chunk)
            if not is_said or chunk.ends_turn:
                yield pending
                pending = []
    if pending:
        yield pending


def _read_chunk(reader: SessionReader, chunk: PortableChunk) -> Append:
    framing = reader.engine.words.framing
    if chunk.role == "assistant":
        reader.frame(framing.answer)
    origin = Origin(chunk.source, chunk.role, chunk.source_digest, end_of_source=chunk.end_of_source)
    if (chunk.source, chunk.source_digest) == (SOURCE, DIGEST):  # read again, it is a session like any other
        origin = Origin(chunk.source, chunk.role)
    append = reader.read_text(chunk.text, split_sentences(chunk.text), origin, ends_turn=chunk.ends_turn)
    if chunk.role == "assistant":
        reader.frame(framing.reopen)
    return append
