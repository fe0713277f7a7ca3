"""Portable files as a stranger could make them: any header, any records, and checksums that are right."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from livingkv.errors import FormatUnsupported, RecordDamaged
from livingkv.store import Store, portable_text, require_portable
from livingkv.store.records import (
    RECORD_HEADER_BYTES,
    Record,
    RecordFlags,
    RecordType,
    pack_record,
    record_bytes,
    unpack_record_header,
)
from tests.store.store_cases import assert_whole, filled_store, new_store

_HEAD = struct.Struct("<8sII")


class ForeignRecord(NamedTuple):
    """A record to be written with right checksums."""

    record_type: int
    number: int
    payload: bytes
    session_id: int = 0
    sequence: int = 0
    flags: int = 0


class ForeignFile(NamedTuple):
    """The parts of a portable file. `header` is JSON bytes."""

    header: bytes
    records: tuple[ForeignRecord, ...]

    @property
    def values(self) -> dict[str, Any]:
        """The header's fields."""
        return dict(json.loads(self.header))

    def with_header(self, changes: Mapping[str, Any], *, without: Sequence[str] = ()) -> ForeignFile:
        """The file with other fields in its header."""
        values = {name: value for name, value in (self.values | dict(changes)).items() if name not in without}
        return self._replace(header=json.dumps(values).encode())

    def write(self, path: Path, *, version: int = 1, header_bytes: int | None = None) -> None:
        """Write it, with a SHA-256 that is right."""
        length = len(self.header) if header_bytes is None else header_bytes
        data = _HEAD.pack(b"LKVEXP\r\n", version, length) + self.header
        data += b"".join(b"".join(_packed(record)) for record in self.records)
        path.write_bytes(data + hashlib.sha256(data).digest())


def _packed(each: ForeignRecord) -> Record:
    flags = RecordFlags(each.flags)
    record_type: Any = each.record_type  # any byte is what a stranger may write
    return pack_record(record_type, flags, each.session_id, each.number, each.sequence, each.payload)


def taken_apart(path: Path) -> ForeignFile:
    """The parts of a file that was exported."""
    data = path.read_bytes()[:-32]
    at = _HEAD.size + _HEAD.unpack_from(data)[2]
    header, records = data[_HEAD.size : at], []
    while at < len(data):
        found = unpack_record_header(data[at : at + RECORD_HEADER_BYTES], 0, at)
        start = at + RECORD_HEADER_BYTES
        payload = data[start : start + found.length]
        records.append(ForeignRecord(RecordType(found.record_type), found.number, payload))
        at += record_bytes(found.length)
    return ForeignFile(header, tuple(records))


@dataclass
class Target:
    """A store, a good exported file taken apart, and where to put a bad one."""

    store: Store
    good: ForeignFile
    path: Path

    def refuses(self, file: ForeignFile, says: str, **how: Any) -> None:
        """The file is refused by everything that reads such files, and nothing is changed."""
        file.write(self.path, **how)
        before = self.state()
        for read in (
            lambda: self.store.import_session(self.path),
            lambda: self.store.import_session(self.path, name="other", kv=False),
            lambda: list(portable_text(self.path)),
            lambda: require_portable(self.path),
        ):
            with pytest.raises((RecordDamaged, FormatUnsupported), match=says) as caught:
                read()
            assert str(self.path) in str(caught.value) and "\n" not in str(caught.value)
        assert self.state() == before

    def state(self) -> tuple[object, ...]:
        """What may not change."""
        sessions = [replace(row, updated_s=0.0) for row in self.store.sessions()]
        return sessions, self.store.stats().size_bytes, self.store.text(1)


@contextlib.contextmanager
def importing(folder: Path) -> Iterator[Target]:
    """A store with one session "main", and the export of another, "moved", with KV; it is checked at the end."""
    filled_store(folder / "one")
    filled_store(folder / "two", n_appends=4)
    with new_store(folder / "two") as store:
        store.rename(1, "moved")
        store.drop_pages(1, [1])
        store.export_session(1, folder / "good.lkv")
    with new_store(folder / "one") as store:
        yield Target(store, taken_apart(folder / "good.lkv"), folder / "bad.lkv")
        assert_whole(store)
