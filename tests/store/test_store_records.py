"""Headers, chunk payloads and catalog values: there and back, every flipped bit noticed, newer versions refused."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest as checksum_digest

from livingkv.errors import FormatUnsupported, RecordDamaged
from livingkv.store import Append, SentenceRecord, item_bytes
from livingkv.store.chunk_payload import TEXT_BLOCK_BYTES, Chunk, ChunkPlace, pack_chunk
from livingkv.store.items import ChunkItem, PageItem, SegmentItem, SessionFlags, SessionItem, SourceItem, State
from livingkv.store.records import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Location,
    RecordFlags,
    RecordType,
    SegmentHeader,
    SegmentKind,
    pack_record,
    pack_segment_header,
    unpack_record_header,
    unpack_segment_header,
    verified_payload,
)

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)


@given(u32, u64, u64, st.binary(max_size=100))
def test_record_there_and_back(session_id: int, number: int, sequence: int, payload: bytes) -> None:
    record = pack_record(RecordType.PAGE, RecordFlags.ENDS_COMMIT, session_id, number, sequence, payload)
    data = b"".join(record)
    assert len(data) % 8 == 0
    header = unpack_record_header(data, 3, 64)
    assert header[:6] == (RecordType.PAGE, RecordFlags.ENDS_COMMIT, session_id, len(payload), number, sequence)
    assert verified_payload(data, header, 3, 64) == payload


@given(st.integers(0, (RECORD_HEADER_BYTES + 20) * 8 - 1))
def test_every_flipped_bit_of_a_record_is_noticed(bit: int) -> None:
    header, payload, _ = pack_record(RecordType.PAGE, RecordFlags.NONE, 1, 2, 3, bytes(range(20)))
    data = bytearray(header + payload)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RecordDamaged):
        verified_payload(bytes(data), unpack_record_header(bytes(data), 1, 64), 1, 64)


def test_a_record_cut_short_is_damaged() -> None:
    data = b"".join(pack_record(RecordType.PAGE, RecordFlags.NONE, 1, 2, 3, bytes(20)))
    with pytest.raises(RecordDamaged, match="segment 7 offset 64"):
        unpack_record_header(data[: RECORD_HEADER_BYTES - 1], 7, 64)
    with pytest.raises(RecordDamaged, match="ends inside a record"):
        verified_payload(data[: RECORD_HEADER_BYTES + 5], unpack_record_header(data, 7, 64), 7, 64)


@pytest.mark.parametrize(("offset", "value"), [(4, 2), (6, 4)])
def test_a_newer_record_is_unsupported_not_damaged(offset: int, value: int) -> None:
    header = bytearray(pack_record(RecordType.PAGE, RecordFlags.NONE, 1, 2, 3, b"")[0])
    header[offset] = value
    header[-8:] = checksum_digest(bytes(header[:-8]))[::-1]
    with pytest.raises(FormatUnsupported, match="update livingkv"):
        unpack_record_header(bytes(header), 1, 64)


@given(st.integers(0, SEGMENT_HEADER_BYTES * 8 - 1))
def test_every_flipped_bit_of_a_segment_header_is_noticed(bit: int) -> None:
    data = bytearray(pack_segment_header(SegmentHeader(SegmentKind.LOG, 5, bytes(16), 1000)))
    assert unpack_segment_header(bytes(data), 5) == SegmentHeader(SegmentKind.LOG, 5, bytes(16), 1000)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RecordDamaged):
        unpack_segment_header(bytes(data), 5)


@pytest.mark.parametrize(("offset", "value"), [(8, 2), (10, 9)])
def test_a_newer_segment_is_unsupported(offset: int, value: int) -> None:
    data = bytearray(pack_segment_header(SegmentHeader(SegmentKind.LOG, 5, bytes(16), 1000)))
    data[offset] = value
    data[-8:] = checksum_digest(bytes(data[:-8]))[::-1]
    with pytest.raises(FormatUnsupported):
        unpack_segment_header(bytes(data), 5)


def test_a_segment_under_another_name_is_damaged() -> None:
    with pytest.raises(RecordDamaged, match="the file is segment 5"):
        unpack_segment_header(pack_segment_header(SegmentHeader(SegmentKind.LOG, 5, bytes(16), 1000)), 6)


PLAIN = Append(1, 0, np.empty(0, dtype=np.int32), b"", (), "a source", "document")


@given(
    st.lists(st.integers(0, (1 << 31) - 1), max_size=300),
    st.lists(st.binary(min_size=1, max_size=900), max_size=12),
    st.text(max_size=20),
)
def test_chunk_there_and_back(ids: list[int], texts: list[bytes], source: str) -> None:
    place = ChunkPlace(10, 20, 30, 40)
    spans, byte = [], place.first_byte
    for text in texts:
        spans.append(SentenceRecord(byte, byte + len(text), 10 + len(ids) // 3, 10 + len(ids)))
        byte += len(text)
    source = source.encode("utf-8", "replace").decode()
    append = replace(
        PLAIN,
        token_ids=np.array(ids, dtype=np.int32),
        text=b"".join(texts),
        sentences=tuple(spans),
        source=source,
        ends_turn=True,
    )
    chunk = Chunk(pack_chunk(append, place).payload)
    assert chunk.place == place
    assert (chunk.source, chunk.role, chunk.ends_turn, chunk.end_of_source) == (source, "document", True, False)
    assert chunk.token_ids().tolist() == ids
    assert chunk.text() == append.text
    assert [chunk.sentence(number) for number in range(chunk.n_sentences)] == spans
    assert chunk.spans().shape == (3, len(texts))
    middle = len(append.text) // 2
    assert chunk.text(middle // 2, middle) == append.text[middle // 2 : middle]


def test_text_is_compressed_only_where_that_is_smaller() -> None:
    place = ChunkPlace(0, 0, 0, 0)
    for text, is_smaller in (
        (b"the same words " * 1000, True),
        (random.Random(1).randbytes(9000), False),
        (b"ab", False),
    ):
        packed = pack_chunk(replace(PLAIN, text=text), place)
        assert (packed.text_bytes < len(text)) is is_smaller
        chunk = Chunk(packed.payload)
        for lo in range(0, len(text), TEXT_BLOCK_BYTES // 2 + 1):
            assert chunk.text(lo, lo + 1) == text[lo : lo + 1]
        assert chunk.text() == text


def test_large_chunks_use_wide_spans() -> None:
    text = b"x" * 70_000
    ids = np.arange(70_000, dtype=np.int32)
    spans = (SentenceRecord(0, 65_536, 0, 65_537), SentenceRecord(65_536, 70_000, 65_537, 70_000))
    chunk = Chunk(pack_chunk(replace(PLAIN, token_ids=ids, text=text, sentences=spans), ChunkPlace(0, 0, 0, 0)).payload)
    assert (chunk.sentence(0), chunk.sentence(1)) == spans
    assert (chunk.token_ids() == ids).all()


def test_real_ids_and_spans_take_few_bytes() -> None:
    rng = random.Random(3)
    ids = np.array([int(2 ** rng.uniform(0, 15)) for _ in range(4096)], dtype=np.int32)
    spans = tuple(SentenceRecord(80 * i, 80 * i + 80, 20 * i, 20 * i + 20) for i in range(200))
    packed = pack_chunk(replace(PLAIN, token_ids=ids, text=b"x" * 16_000, sentences=spans), ChunkPlace(0, 0, 0, 0))
    assert packed.token_id_bytes < 2 * len(ids)
    assert packed.span_bytes == 6 * len(spans)


@pytest.mark.parametrize("offset", [32, 36, 40, 52, 64, 68])
def test_a_chunk_whose_parts_do_not_fit_is_damaged(offset: int) -> None:
    append = replace(PLAIN, token_ids=np.arange(9, dtype=np.int32), text=b"ab", sentences=(SentenceRecord(0, 2, 0, 9),))
    payload = bytearray(pack_chunk(append, ChunkPlace(0, 0, 0, 0)).payload)
    payload[offset] += 1
    with pytest.raises(RecordDamaged):
        chunk = Chunk(bytes(payload))
        chunk.token_ids()
        chunk.spans()
        chunk.text()


def test_an_unknown_role_is_unsupported() -> None:
    payload = bytearray(pack_chunk(PLAIN, ChunkPlace(0, 0, 0, 0)).payload)
    payload[48] = 9
    with pytest.raises(FormatUnsupported, match="role 9"):
        Chunk(bytes(payload))


def test_catalog_values_there_and_back() -> None:
    state = State(1, 2, 3 << 40, 4 << 40)
    assert item_bytes.unpack_state(item_bytes.pack_state(state)) == state
    segment = SegmentItem(SegmentKind.PAGES, 5, 6 << 40)
    assert item_bytes.unpack_segment(item_bytes.pack_segment(segment)) == segment
    session = SessionItem(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13 << 50, "Zürich")
    assert item_bytes.unpack_session(item_bytes.pack_session(session) + b"later") == session
    session = session._replace(key_id=bytes(range(16)), flags=SessionFlags.PINNED)
    assert item_bytes.unpack_session(item_bytes.pack_session(session) + b"later") == session
    source = SourceItem(1, 2, 3, True, "a\udcffb", "digest")
    assert item_bytes.unpack_source(item_bytes.pack_source(source) + b"later") == source
    chunk = ChunkItem(Location(1, 2 << 40, 3), 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 1, 0)
    assert item_bytes.unpack_chunk_item(item_bytes.pack_chunk_item(chunk) + b"later") == chunk
    page = PageItem(Location(1, 2 << 40, 3), 4)
    assert item_bytes.unpack_page(item_bytes.pack_page(page) + b"later") == page


@given(st.binary(max_size=20), st.binary(max_size=40), st.integers(0))
def test_every_flipped_bit_of_a_catalog_value_is_noticed(key: bytes, body: bytes, bit: int) -> None:
    value = bytearray(item_bytes.seal(key, body))
    assert item_bytes.unseal(key, bytes(value), "pages") == body
    bit %= len(value) * 8
    value[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RecordDamaged, match="pages"):
        item_bytes.unseal(key, bytes(value), "pages")


def test_the_bytes_are_those_of_the_format_page() -> None:
    """FORMAT.md, sections 4 and 5, taken literally: a change here is a change of the format."""
    header, payload, padding = pack_record(RecordType.CHUNK, RecordFlags.ENDS_COMMIT, 7, 8, 9, b"payload")
    assert header[:32] == b"LKVR" + bytes([1, 2, 1, 0, 7, 0, 0, 0, 7, 0, 0, 0, 8, *bytes(7), 9, *bytes(7)])
    assert header[32:40] == checksum_digest(b"payload")[::-1]
    assert header[40:] == checksum_digest(header[:40])[::-1]
    assert len(header + payload + padding) == 56
    segment = pack_segment_header(SegmentHeader(SegmentKind.PAGES, 3, bytes(range(16)), 5))
    assert segment[:40] == b"LKVSEG\r\n" + bytes([1, 0, 2, 0, 3, 0, 0, 0, *range(16), 5, *bytes(7)])
    assert segment[40:] == bytes(16) + checksum_digest(segment[:56])[::-1]
    append = replace(PLAIN, token_ids=np.array([1, 258], dtype=np.int32), text=b"ab", source="s", source_digest="d")
    append = replace(append, sentences=(SentenceRecord(4, 6, 3, 5),), end_of_source=True)
    packed = pack_chunk(append, ChunkPlace(3, 4, 5, 6)).payload
    numbers = b"".join(value.to_bytes(8, "little") for value in (3, 4, 5, 6))
    counts = b"".join(value.to_bytes(4, "little") for value in (2, 2, 1, 0))
    parts = b"".join(value.to_bytes(4, "little") for value in (1, 1, 6, 4, 2))
    assert packed[:80] == numbers + counts + bytes([1, 1, 2, 0]) + parts + bytes(8)
    assert packed[80:] == b"sd" + bytes([2, 0, 0, 0, 2, 0]) + bytes([1, 2, 0, 1]) + b"ab"
