"""The vectors on disk: an append-only file of checked batches, as FORMAT.md says.

Knows bytes, checksums and syncs; knows nothing of search. How many bytes of a file count is the caller's to remember.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from livingkv.errors import IndexDamaged, IndexFault, StoreFull
from livingkv.regular_files import open_regular, reading

_MAGIC = b"LKVVECS\n"
_VERSION = 1
_HEADER = struct.Struct("<8sIIII")  # magic, version, dimension, length of the embedder id, reserved
_BATCH = struct.Struct("<IIQ")  # magic, n, checksum
_BATCH_MAGIC = 0x54414256
_CHECKSUM = struct.Struct("<Q")


class Batch(NamedTuple):
    """Vectors that were appended together."""

    sentence_ids: npt.NDArray[np.int64]  # [n]
    session_ids: npt.NDArray[np.int64]  # [n]
    codes: npt.NDArray[np.uint8]  # [n, dimension]


def create(path: Path, embedder_id: str, dimension: int, batch: Batch | None = None) -> int:
    """Write a new file and return its size; file and folder are durable on return. Raises StoreFull, IndexFault."""
    name = embedder_id.encode()
    head = _HEADER.pack(_MAGIC, _VERSION, dimension, len(name), 0) + name
    head += _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))
    path.unlink(missing_ok=True)
    _write(path, 0, head + (_packed(batch) if batch is not None and len(batch.sentence_ids) else b""))
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return path.stat().st_size


def append(path: Path, size_bytes: int, batch: Batch) -> int:
    """Write a batch behind the first `size_bytes`, whatever was there, and return the new size; durable on return.

    Raises StoreFull or IndexFault; the first `size_bytes` are untouched then.
    """
    packed = _packed(batch)
    _write(path, size_bytes, packed)
    return size_bytes + len(packed)


def read(path: Path, embedder_id: str, dimension: int, lo: int, hi: int) -> Iterator[Batch]:
    """The batches between two sizes; lo = 0 means all, and checks the header. Raises IndexDamaged."""
    try:
        with reading(path) as file:
            file.seek(lo)
            blob = file.read(hi - lo)
    except FileNotFoundError as error:
        raise IndexDamaged(f"the vector file {path.name} is missing; rebuild the index from the store") from error
    except OSError as error:
        raise IndexDamaged(f"the vector file {path.name} cannot be read ({error}); rebuild the index") from error
    if len(blob) != hi - lo:
        raise IndexDamaged(f"the vector file {path.name} ends early; rebuild the index from the store")
    at = _check_header(path, blob, embedder_id, dimension) if lo == 0 else 0
    while at < len(blob):
        batch, at = _unpacked(path, blob, at, dimension)
        yield batch


def _packed(batch: Batch) -> bytes:
    n = len(batch.sentence_ids)
    assert batch.codes.shape[0] == n == len(batch.session_ids) > 0
    body = b"".join((batch.sentence_ids.astype("<i8").tobytes(), batch.session_ids.astype("<i8").tobytes()))
    body += batch.codes.tobytes()
    return _BATCH.pack(_BATCH_MAGIC, n, _body_checksum(n, body)) + body


def _unpacked(path: Path, blob: bytes, at: int, dimension: int) -> tuple[Batch, int]:
    damage = IndexDamaged(f"the vector file {path.name} failed a checksum; rebuild the index from the store")
    if len(blob) - at < _BATCH.size:
        raise damage
    magic, n, checksum = _BATCH.unpack_from(blob, at)
    lo, hi = at + _BATCH.size, at + _BATCH.size + n * (16 + dimension)
    body = memoryview(blob)[lo:hi]
    if magic != _BATCH_MAGIC or n == 0 or hi > len(blob) or _body_checksum(n, body) != checksum:
        raise damage
    sentence_ids = np.frombuffer(body, "<i8", n).astype(np.int64)
    session_ids = np.frombuffer(body, "<i8", n, 8 * n).astype(np.int64)
    codes = np.frombuffer(body, np.uint8, offset=16 * n).reshape(n, dimension)
    return Batch(sentence_ids, session_ids, codes), hi


def _body_checksum(n: int, body: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(struct.pack("<I", n))
    digest.update(body)
    return digest.intdigest()


def _check_header(path: Path, blob: bytes, embedder_id: str, dimension: int) -> int:
    name = embedder_id.encode()
    end = _HEADER.size + len(name)
    expected = _HEADER.pack(_MAGIC, _VERSION, dimension, len(name), 0) + name
    expected += _CHECKSUM.pack(xxhash.xxh3_64_intdigest(expected))
    if blob[: end + _CHECKSUM.size] != expected:
        raise IndexDamaged(f"the vector file {path.name} is of another kind or damaged; rebuild the index")
    return end + _CHECKSUM.size


def _write(path: Path, at: int, content: bytes) -> None:
    try:
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(descriptor, at)
            view = memoryview(content)
            while view:
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFull(f"no disk space for {path.name}; free some, the last commit stands") from error
        raise IndexFault(f"the vector file {path} cannot be written: {error.strerror}") from error
