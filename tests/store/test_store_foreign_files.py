"""Files to import whose checksum is right and whose content is not: one line names file and field, nothing is done."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from livingkv.errors import FingerprintMismatch, StoreError
from livingkv.store import require_portable
from livingkv.store.chunk_payload import FIXED_BYTES
from livingkv.store.records import RecordType
from tests.store.foreign_files import ForeignRecord, Target, importing
from tests.store.store_cases import FINGERPRINT


@pytest.fixture
def target(folder: Path) -> Iterator[Target]:
    """Where files are to be imported."""
    with importing(folder) as target:
        yield target


def test_the_parts_make_the_file_again(target: Target) -> None:
    target.good.write(target.path)
    assert target.path.read_bytes() == target.path.with_name("good.lkv").read_bytes()
    assert target.store.import_session(target.path).name == "moved"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"not json", "header: it is not JSON"),
        (b"\xff\xfe", "header: it is not JSON"),
        (b"", "header: it is not JSON"),
        (b"[" * 100_000, "header: it is nested too deep"),
        (b"[]", "header: it is not a JSON object"),
        (b"null", "header: it is not a JSON object"),
        (b"7" * 5000, "header: it is not JSON"),
    ],
)
def test_a_header_that_is_no_object(target: Target, header: bytes, says: str) -> None:
    target.refuses(target.good._replace(header=header), says)


@pytest.mark.parametrize(
    "name", ["fingerprint", "name", "created_ms", "text_only", "n_tokens", "n_chunks", "n_pages", "has_tail"]
)
def test_every_field_of_the_header_is_needed_with_its_type(target: Target, name: str) -> None:
    target.refuses(target.good.with_header({}, without=[name]), name)
    values: list[object] = [None, [], {}, 1.5, float("nan"), "\ud800"]
    for value in values:
        target.refuses(target.good.with_header({name: value}), name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", 5),
        ("name", ""),
        ("name", "a\nb"),
        ("name", "x" * 256),
        ("created_ms", "yesterday"),
        ("created_ms", True),
        ("created_ms", -1),
        ("created_ms", 1 << 60),
        ("created_ms", 10**400),
        ("text_only", 1),
        ("text_only", "yes"),
        ("has_tail", 0),
        ("n_tokens", 10**400),
        ("n_tokens", True),
        ("n_chunks", -1),
        ("n_pages", "8"),
    ],
)
def test_a_field_out_of_its_range(target: Target, name: str, value: object) -> None:
    target.refuses(target.good.with_header({name: value}), name)


@pytest.mark.parametrize("name", ["n_tokens", "n_chunks", "n_pages"])
@pytest.mark.parametrize("more", [-1, 1])
def test_counts_are_those_of_the_records(target: Target, name: str, more: int) -> None:
    target.refuses(target.good.with_header({name: target.good.values[name] + more}), name)


def test_a_tail_is_there_as_the_header_says(target: Target) -> None:
    without = tuple(each for each in target.good.records if each.record_type != RecordType.TAIL)
    target.refuses(target.good._replace(records=without), "has_tail")
    target.refuses(target.good.with_header({"has_tail": not target.good.values["has_tail"]}), "has_tail")


@pytest.mark.parametrize("value", [{"page_tokens": True}, {"page_tokens": 0}, {"page_tokens": 1 << 70}, {"model": 5}])
def test_the_fields_of_the_fingerprint(target: Target, value: dict[str, object]) -> None:
    changed = target.good.values["fingerprint"] | value
    target.refuses(target.good.with_header({"fingerprint": changed}), f"fingerprint: {next(iter(value))}")


def test_a_name_with_a_line_break_in_a_fingerprint_stays_one_line(target: Target) -> None:
    target.good.with_header({"fingerprint": FINGERPRINT.to_json() | {"model": "a\nb"}}).write(target.path)
    with pytest.raises(FingerprintMismatch, match=r"needs tiny") as caught:
        target.store.import_session(target.path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("position", [0, 1, -2, -1])
def test_a_record_that_stands_twice(target: Target, position: int) -> None:
    records = list(target.good.records)
    records.insert(position, records[position])
    target.refuses(target.good._replace(records=tuple(records)), r"record at byte")


def test_records_out_of_order_or_out_of_range(target: Target) -> None:
    records = target.good.records
    target.refuses(target.good._replace(records=records[::-1]), "record at byte")
    target.refuses(target.good._replace(records=(records[1], records[0], *records[2:])), "record at byte")
    pages = [position for position, each in enumerate(records) if each.record_type == RecordType.PAGE]
    far = (*records[: pages[-1]], records[pages[-1]]._replace(number=99), *records[pages[-1] + 1 :])
    target.refuses(target.good._replace(records=far), "page 99")


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": 1},
        {"sequence": 1},
        {"flags": 1},
        {"flags": 2},
        {"number": 7},
        {"record_type": RecordType.SESSION},
        {"record_type": RecordType.VOID},
        {"record_type": 77},
        {"payload": b""},
        {"payload": b"short"},
        {"payload": bytes(FIXED_BYTES)},
    ],
)
def test_the_header_of_a_record(target: Target, change: dict[str, Any]) -> None:
    first, *others = target.good.records
    target.refuses(target.good._replace(records=(first._replace(**change), *others)), "record at byte")


CHUNK_FIELDS = [("first_token", "<Q", 0), ("first_byte", "<Q", 8), ("time", "<Q", 24), ("n_tokens", "<I", 32)]
CHUNK_FIELDS += [("n_bytes", "<I", 36), ("n_sentences", "<I", 40), ("role", "<B", 48), ("packing", "<B", 50)]


def with_field(record: ForeignRecord, kind: str, offset: int, value: int) -> ForeignRecord:
    """A chunk record with another number in its fixed part."""
    payload = bytearray(record.payload)
    struct.pack_into(kind, payload, offset, value)
    return record._replace(payload=bytes(payload))


@pytest.mark.parametrize(("name", "kind", "offset"), CHUNK_FIELDS)
def test_the_fields_of_a_chunk(target: Target, name: str, kind: str, offset: int) -> None:
    first, *others = target.good.records
    changed = with_field(first, kind, offset, (1 << 8 * struct.calcsize(kind)) - 1)
    target.refuses(target.good._replace(records=(changed, *others)), "record at byte")


def test_a_digest_that_is_no_text(target: Target) -> None:
    first, *others = target.good.records
    source_bytes, digest_bytes = struct.unpack_from("<II", first.payload, 52)
    at = FIXED_BYTES + source_bytes
    for bad in (b"\xff", b"\0"):
        payload = first.payload[:at] + bad * digest_bytes + first.payload[at + digest_bytes :]
        target.refuses(target.good._replace(records=(first._replace(payload=payload), *others)), "digest")


def test_the_head_of_the_file(target: Target) -> None:
    for length in (0, len(target.good.header) - 1, len(target.good.header) + 1, 1 << 19, (1 << 32) - 1):
        target.refuses(target.good, "header", header_bytes=length)
    target.refuses(target.good, "newer livingkv", version=2)
    target.refuses(target.good, "version 0", version=0)


@pytest.mark.timeout(10)
def test_a_pipe_is_no_exported_file(target: Target) -> None:
    os.mkfifo(target.path)
    for read in (lambda: target.store.import_session(target.path), lambda: require_portable(target.path)):
        with pytest.raises(StoreError, match="is a pipe, socket or device"):
            read()
    with pytest.raises(StoreError, match="is a pipe, socket or device"):
        target.store.export_session(1, target.path)
    assert target.path.is_fifo()
