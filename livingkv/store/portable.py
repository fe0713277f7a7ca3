"""One session in one file (FORMAT.md, section 13): written as a stream, and checked as a whole when opened.

Knows the file's bytes; refuses to know stores.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from livingkv.errors import FormatUnsupported, RecordDamaged
from livingkv.regular_files import reading, require_regular
from livingkv.store.disk import Disk, errors_named
from livingkv.store.portable_rules import PortableHeader, PortableRules, header_from_json
from livingkv.store.records import (
    RECORD_HEADER_BYTES,
    Record,
    RecordHeader,
    record_bytes,
    unpack_record_header,
    verified_payload,
)

_HEAD = struct.Struct("<8sII")
_MAGIC = b"LKVEXP\r\n"
_VERSION = 1
_DIGEST_BYTES = 32
_READ_BYTES = 1 << 20
_HEADER_LIMIT = 1 << 20
_AGAIN = "export the session again"


class PortableRecord(NamedTuple):
    """One record of a portable file."""

    record_type: int
    number: int
    payload: bytes


def write_portable(disk: Disk, path: Path, header: PortableHeader, records: Iterable[Record]) -> int:
    """Write a file, whole or not at all; durable on return. Its size in bytes. A pipe or device is not replaced."""
    values = {name: getattr(header, name) for name in PortableHeader.__slots__ if name != "fingerprint"}
    text = json.dumps(values | {"fingerprint": header.fingerprint.to_json()}, ensure_ascii=False).encode()
    digest = hashlib.sha256()
    draft = path.with_name(path.name + ".tmp")
    with errors_named(path):
        require_regular(path)
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


def _append(disk: Disk, descriptor: int, digest: Any, parts: Sequence[bytes | memoryview], at: int) -> int:
    disk.write(descriptor, parts, at)
    for part in parts:
        digest.update(part)
    return at + sum(map(len, parts))


class PortableFile:
    """An open portable file whose checksum and header have been verified. A context manager.

    Raises RecordDamaged if a byte is not as it was written or a field not as it may be, naming the file and the field,
    FormatUnsupported for a newer version, StoreError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with errors_named(path):
            self._file: BinaryIO = reading(path)
        with contextlib.ExitStack() as undo:
            undo.callback(self._file.close)
            with errors_named(path):
                self._end = self._verify()
                self.header, self._start = self._read_header()
            undo.pop_all()

    def _verify(self) -> int:
        size = os.fstat(self._file.fileno()).st_size
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size or _HEAD.unpack(head)[0] != _MAGIC:
            raise RecordDamaged(f"{self._path} is not an exported session")
        version = _HEAD.unpack(head)[1]
        if version > _VERSION:
            raise FormatUnsupported(f"{self._path} was written by a newer livingkv: update livingkv to read it")
        digest, left = hashlib.sha256(head), size - _DIGEST_BYTES - _HEAD.size
        while left > 0 and (data := self._file.read(min(left, _READ_BYTES))):
            digest.update(data)
            left -= len(data)
        if left or self._file.read(_DIGEST_BYTES) != digest.digest():
            raise RecordDamaged(f"{self._path} is cut short or was changed: export the session again")
        if version < 1:
            raise RecordDamaged(f"{self._path} is not an exported session: it has version {version}")
        return size - _DIGEST_BYTES

    def _read_header(self) -> tuple[PortableHeader, int]:
        self._file.seek(0)
        length = _HEAD.unpack(self._file.read(_HEAD.size))[2]
        if length > min(_HEADER_LIMIT, self._end - _HEAD.size):
            raise RecordDamaged(f"{self._path}: header: it has {length} bytes, more than may be; {_AGAIN}")
        try:
            return header_from_json(self._file.read(length)), _HEAD.size + length
        except RecordDamaged as error:
            raise RecordDamaged(f"{self._path}: header: {error}; {_AGAIN}") from error

    def records(self) -> Iterator[PortableRecord]:
        """All records in order, each verified. What only the last one shows, such as a missing page, is raised last:
        nothing may be done for good before this has ended once."""
        rules, at = PortableRules(self.header), self._start
        while at < self._end:
            with self._errors_at(at):
                header, payload = self._record(at)
                rules.take(header, payload)
            yield PortableRecord(header.record_type, header.number, payload)
            at += record_bytes(header.length)
        try:
            rules.finish()
        except RecordDamaged as error:
            raise RecordDamaged(f"{self._path}: header: {error}; {_AGAIN}") from error

    def _record(self, at: int) -> tuple[RecordHeader, bytes]:
        with errors_named(self._path):
            self._file.seek(at)
            data = self._file.read(min(RECORD_HEADER_BYTES, self._end - at))
            header = unpack_record_header(data, 0, at)
            if at + record_bytes(header.length) > self._end:
                raise RecordDamaged("the file ends inside it")
            return header, verified_payload(data + self._file.read(header.length), header, 0, at)

    @contextlib.contextmanager
    def _errors_at(self, at: int) -> Iterator[None]:
        """Let what is wrong with a record name the file."""
        try:
            yield
        except RecordDamaged as error:
            raise RecordDamaged(f"{self._path}: record at byte {at}: {error}; {_AGAIN}") from error
        except FormatUnsupported as error:
            raise FormatUnsupported(f"{self._path}: record at byte {at}: {error}") from error

    def require_whole(self) -> None:
        """Read all records. Raises RecordDamaged or FormatUnsupported unless they are one session."""
        for _ in self.records():
            pass

    def __enter__(self) -> PortableFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
