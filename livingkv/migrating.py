"""Migration: a store's kept text read again by another model or codec, into a new store that then takes its place.

Knows the portable chunks of sessions and how a session is read; the old store is kept beside the new one until somebody
removes it. Nothing of the old store is changed before the new one is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from livingkv.errors import InputError, StoreError
from livingkv.home import Home
from livingkv.model_choice import ModelChoice
from livingkv.models import LoadedModel
from livingkv.results import Migrated
from livingkv.session_reader import Origin, SessionReader
from livingkv.settings import Settings
from livingkv.store import BEFORE_MIGRATION, MIGRATING, Append, PortableChunk, SessionRow
from livingkv.text import split_sentences


def migrate(
    path: Path,
    *,
    model: str | ModelChoice | LoadedModel | None,
    settings: Settings,
    progress: Callable[[str, int, int], None] | None = None,
) -> Migrated:
    """Read every session of the store at `path` again with `model` and the settings' codec, then swap. Blocks for
    as long as reading the text takes; broken off, the old store stands and the next call begins anew.

    model: None keeps the store's, and its weights and positions where they are not chosen. `progress` gets a session's
    name, sessions done and in all.
    Raises InputError when an old store of an earlier migration is still beside it, StoreError or ModelError.
    """
    new, old = path.with_name(path.name + MIGRATING), path.with_name(path.name + BEFORE_MIGRATION)
    if old.exists():
        raise InputError("store", old, "an earlier migration left it: check the new store, then remove it")
    if new.exists():
        shutil.rmtree(new)
    source = Home(path, None, Settings(key_folder=settings.key_folder), read_only=False, create=False)
    try:
        rows = source.store().sessions()
        before = sum(row.n_tokens for row in rows)
        after = _copy_sessions(source, rows, new, model, settings, progress)
    finally:
        source.close()
    path.rename(old)
    new.rename(path)
    _sync_folder(path.parent)
    return Migrated(str(path), str(old), len(rows), before, after)


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
        for done, row in enumerate(rows, 1):
            _read_session(target, row, source.store().portable_chunks(row.session_id))
            if progress is not None:
                progress(row.name, done, len(rows))
        target.index.feed()
        return sum(row.n_tokens for row in target.store().sessions())
    finally:
        target.close()


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
    append = reader.read_text(chunk.text, split_sentences(chunk.text), origin, ends_turn=chunk.ends_turn)
    if chunk.role == "assistant":
        reader.frame(framing.reopen)
    return append


def _sync_folder(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be synced ({error.strerror}): the migration may not survive a power loss"
        ) from error
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
