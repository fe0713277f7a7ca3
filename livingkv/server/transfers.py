"""Sessions as files on their way out and in: written beside the store, streamed, and gone afterwards.

Knows files, tenants and portable sessions; knows no route. A file that is sent has no name any more, so that nothing
is left of it whatever becomes of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from livingkv.errors import FingerprintMismatch, FormatUnsupported, RecordDamaged
from livingkv.server.api_errors import ApiError
from livingkv.server.session_state import damaged
from livingkv.server.stepwise import aside
from livingkv.server.tenants import Tenant
from livingkv.store import IdempotencyKey, SessionRow, require_portable
from livingkv.store.disk import errors_named

_CHUNK_BYTES = 1 << 20
_PREFIX = "file-"


@dataclass(frozen=True, slots=True)
class Received:
    """A file that came. digest: SHA-256 of its bytes."""

    path: Path
    n_bytes: int
    digest: bytes


def clear(folder: Path) -> None:
    """Remove what a process left that was killed with files on their way."""
    if folder.is_dir():
        for path in folder.glob(f"{_PREFIX}*"):
            path.unlink(missing_ok=True)


@asynccontextmanager
async def received(folder: Path, parts: AsyncIterator[bytes]) -> AsyncIterator[Received]:
    """A file of what comes, for as long as the block lasts. Raises StoreFull or StoreError."""
    path, digest, n_bytes = _new_path(folder), hashlib.sha256(), 0
    try:
        with errors_named(folder):
            file = await asyncio.to_thread(_opened_new, path)
            with file:
                async for part in parts:
                    digest.update(part)
                    n_bytes += len(part)
                    await asyncio.to_thread(file.write, part)
                await asyncio.to_thread(file.flush)
        yield Received(path, n_bytes, digest.digest())
    finally:
        path.unlink(missing_ok=True)


def exported(tenant: Tenant, row: SessionRow, folder: Path, *, kv: bool, decrypt: bool) -> BinaryIO:
    """An open file of a session, which has no name any more. On the inference thread, paused meanwhile. Raises
    InputError, KeyMissing, StoreFull, or ApiError where the session is damaged."""
    store, path = tenant.home.store(), _new_path(folder)

    def write() -> BinaryIO:
        with errors_named(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _removed(path):
                store.export_session(row.session_id, path, kv=kv, decrypt=decrypt)
                path.chmod(0o600)
                return path.open("rb")

    try:
        return aside(write)
    except RecordDamaged as error:
        raise damaged(row, error) from error


async def sent(file: BinaryIO) -> AsyncIterator[bytes]:
    """The bytes of an open file, which is closed at the end, also where the client goes away."""
    with file:
        while part := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield part


def name_in(path: Path) -> str:
    """The name of the session in a file that came. Raises ApiError where it is no whole exported session."""
    try:
        return require_portable(path)
    except (RecordDamaged, FormatUnsupported) as error:
        raise ApiError(400, _without_path(error, path), code="file_damaged") from error


def imported(tenant: Tenant, path: Path, name: str, *, kv: bool, once: IdempotencyKey | None = None) -> SessionRow:
    """The session made from a file that came. On the inference thread, alone in the tenant's memory, paused meanwhile.
    Raises ApiError for a file of another model, SessionExists, StoreFull or StoreError."""
    store = tenant.home.writable_store()
    try:
        row = aside(lambda: store.import_session(path, name=name, kv=kv, once=once))
    except FingerprintMismatch as error:
        raise ApiError(409, _without_path(error, path), code="fingerprint_mismatch") from error
    tenant.home.index.feed_if_possible()
    return row


def _without_path(error: Exception, path: Path) -> str:
    return str(error).replace(str(path), "the file")


def _new_path(folder: Path) -> Path:
    return folder / f"{_PREFIX}{token_hex(12)}"


def _opened_new(path: Path) -> BinaryIO:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    """Leave no name of a file behind."""
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
