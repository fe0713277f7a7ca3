"""One session in one file (FORMAT.md, section 13): written as a stream, and checked as a whole when opened.

Knows the file's bytes; refuses to know stores.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from livingkv.errors import FormatUnsupported, RecordDamaged
from livingkv.store.disk import Disk, errors_named
from livingkv.store.fingerprint import Fingerprint
from livingkv.store.records import RECORD_HEADER_BYTES, Record, record_bytes, unpack_record_header, verified_payload

_HEAD = struct.Struct("<8sII")
_MAGIC = b"LKVEXP\r\n"
_VERSION = 1
_DIGEST_BYTES = 32
_READ_BYTES = 1 << 20
_HEADER_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class PortableHeader:
    """What a portable file holds. `n_pages` counts the pages that are in it."""

    fingerprint: Fingerprint
    name: str
    created_ms: int
    text_only: bool
    n_tokens: int
    n_chunks: int
    n_pages: int
    has_tail: bool


class PortableRecord(NamedTuple):
    """One record of a portable file."""

    record_type: int
    number: int
    payload: bytes


def write_portable(disk: Disk, path: Path, header: PortableHeader, records: Iterable[Record]) -> int:
    """Write a file, whole or not at all; durable on return. Its size in bytes."""
    values = {name: getattr(header, name) for name in PortableHeader.__slots__ if name != "fingerprint"}
    text = json.dumps(values | {"fingerprint": header.fingerprint.to_json()}, ensure_ascii=False).encode()
    digest = hashlib.sha256()
    draft = path.with_name(path.name + ".tmp")
    with errors_named(path):
        descriptor = disk.open_new(draft)
        with contextlib.ExitStack() as undo:
            undo.callback(disk.remove, draft)
            try:
                at = _append(disk, descriptor, digest, [_HEAD.pack(_MAGIC, _VERSION, len(text)), text], 0)
                for record in records:
                    at = _append(disk, descriptor, digest, list(record), at)
                disk.write(descriptor, [digest.digest()], at)
                disk.sync(descriptor)
            finally:
                disk.close(descriptor)
            undo.pop_all()
        disk.rename(draft, path)
        disk.sync_folder(path.parent)
    return at + _DIGEST_BYTES


def _append(disk: Disk, descriptor: int, digest: Any, parts: list[bytes], at: int) -> int:
    disk.write(descriptor, parts, at)
    for part in parts:
        digest.update(part)
    return at + sum(map(len, parts))


class PortableFile:
    """An open portable file whose checksum has been verified. A context manager.

    Raises RecordDamaged if a byte is not as it was written, FormatUnsupported for a newer version, StoreError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with errors_named(path):
            self._file: BinaryIO = path.open("rb")
        with contextlib.ExitStack() as undo:
            undo.callback(self._file.close)
            with errors_named(path):
                self._end = self._verify()
                self.header, self._start = self._read_header()
            undo.pop_all()

    def _verify(self) -> int:
        size = self._path.stat().st_size
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size or _HEAD.unpack(head)[0] != _MAGIC:
            raise RecordDamaged(f"{self._path} is not an exported session")
        if _HEAD.unpack(head)[1] > _VERSION:
            raise FormatUnsupported(f"{self._path} was written by a newer livingkv: update livingkv to read it")
        digest, left = hashlib.sha256(head), size - _DIGEST_BYTES - _HEAD.size
        while left > 0 and (data := self._file.read(min(left, _READ_BYTES))):
            digest.update(data)
            left -= len(data)
        if left or self._file.read(_DIGEST_BYTES) != digest.digest():
            raise RecordDamaged(f"{self._path} is cut short or was changed: export the session again")
        return size - _DIGEST_BYTES

    def _read_header(self) -> tuple[PortableHeader, int]:
        self._file.seek(0)
        length = _HEAD.unpack(self._file.read(_HEAD.size))[2]
        if length > _HEADER_LIMIT:
            raise RecordDamaged(f"{self._path} has a damaged header")
        values = json.loads(self._file.read(length))
        known = {name: values[name] for name in PortableHeader.__slots__ if name != "fingerprint"}
        return PortableHeader(fingerprint=Fingerprint.from_json(values["fingerprint"]), **known), _HEAD.size + length

    def records(self) -> Iterator[PortableRecord]:
        """All records in order, each verified."""
        at = self._start
        while at < self._end:
            with errors_named(self._path):
                self._file.seek(at)
                data = self._file.read(RECORD_HEADER_BYTES)
                header = unpack_record_header(data, 0, at)
                data += self._file.read(header.length)
            yield PortableRecord(header.record_type, header.number, verified_payload(data, header, 0, at))
            at += record_bytes(header.length)

    def __enter__(self) -> PortableFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
