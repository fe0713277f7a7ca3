"""Keys and values of the catalog (FORMAT.md, section 6): typed rows to bytes and back, a check in front of each value.

Knows keys and values one at a time; refuses to know LMDB and what the rows mean together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from livingkv.errors import RecordDamaged
from livingkv.store.items import (
    ChunkItem,
    Erasure,
    PageItem,
    PageState,
    SegmentItem,
    SessionFlags,
    SessionItem,
    SourceItem,
    State,
    StoredRequest,
    Weight,
)
from livingkv.store.records import Location, SegmentKind

_CHECK = struct.Struct("<I")
CHECK_BYTES = _CHECK.size
_U32 = struct.Struct("<I")
_PAIR = struct.Struct("<II")
_STATE = struct.Struct("<IIQQ")
_SEGMENT = struct.Struct("<B3xIQ")
_SESSION = struct.Struct("<QQQQQQIIIIIIQI")
_SESSION_MORE = struct.Struct("<IIQ")
_SOURCE = struct.Struct("<QQQIII")
_CHUNK = struct.Struct("<IIQIIQQQIIIIIIBBQ")
_PAGE = struct.Struct("<IIQIB")
_PLACE = struct.Struct("<IQI")
_ERASURE = struct.Struct("<IB")
_WEIGHT = struct.Struct("<fQI")
_REQUEST = struct.Struct("<16sQQI")
_HAS_KEY = 8
_KEY_ID_BYTES = 16
_KEY_1 = struct.Struct(">I")
_KEY_2 = struct.Struct(">II")
_KEY_3 = struct.Struct(">III")
_KEY_LONG = struct.Struct(">Q")
_KEY_PLACE = struct.Struct(">IQ")


def seal(key: bytes, body: bytes) -> bytes:
    """A value for `key`: check, then body."""
    return _CHECK.pack(xxh3_64_intdigest(key + body) & 0xFFFFFFFF) + body


def unseal(key: bytes, value: bytes, what: str) -> bytes:
    """The body of a value. Raises RecordDamaged, naming `what`, if its check fails."""
    body = value[_CHECK.size :]
    if len(value) < _CHECK.size or _CHECK.unpack_from(value)[0] != xxh3_64_intdigest(key + body) & 0xFFFFFFFF:
        raise RecordDamaged(f"catalog: the entry of {what} ({key.hex()}) fails its check")
    return body


def key_1(number: int) -> bytes:
    """Key of one 4-byte number."""
    return _KEY_1.pack(number)


def key_2(first: int, second: int) -> bytes:
    """Key of two 4-byte numbers."""
    return _KEY_2.pack(first, second)


def key_3(first: int, second: int, third: int) -> bytes:
    """Key of three 4-byte numbers."""
    return _KEY_3.pack(first, second, third)


def key_long(number: int) -> bytes:
    """Key of one 8-byte number."""
    return _KEY_LONG.pack(number)


def numbers_of(key: bytes) -> tuple[int, ...]:
    """The 4-byte numbers of a key."""
    return struct.unpack(f">{len(key) // 4}I", key)


def long_of(key: bytes) -> int:
    """The 8-byte number of a key."""
    return int(_KEY_LONG.unpack(key)[0])


def source_key(session_id: int, name: str, digest: str) -> bytes:
    """Key under which a source's number is found."""
    identity = name.encode("utf-8", "surrogateescape") + b"\0" + digest.encode()
    return key_1(session_id) + xxh3_128_digest(identity)


def pack_number(number: int) -> bytes:
    """Body of one 4-byte number."""
    return _U32.pack(number)


def unpack_number(body: bytes) -> int:
    """The number of `pack_number`."""
    return int(_U32.unpack_from(body)[0])


def pack_pair(first: int, second: int) -> bytes:
    """Body of two 4-byte numbers."""
    return _PAIR.pack(first, second)


def unpack_pair(body: bytes) -> tuple[int, int]:
    """The numbers of `pack_pair`."""
    first, second = _PAIR.unpack_from(body)
    return first, second


def pack_longs(numbers: Iterable[int]) -> bytes:
    """Body of 8-byte numbers, ascending."""
    ordered = sorted(numbers)
    return struct.pack(f"<{len(ordered)}Q", *ordered)


def unpack_longs(body: bytes) -> frozenset[int]:
    """The numbers of `pack_longs`."""
    return frozenset(struct.unpack(f"<{len(body) // 8}Q", body))


def pack_state(state: State) -> bytes:
    """Body of the state."""
    return _STATE.pack(*state)


def unpack_state(body: bytes) -> State:
    """The state of `pack_state`."""
    return State(*_STATE.unpack_from(body))


def pack_segment(item: SegmentItem) -> bytes:
    """Body of a segment."""
    return _SEGMENT.pack(*item)


def unpack_segment(body: bytes) -> SegmentItem:
    """The segment of `pack_segment`."""
    kind, n_records, committed = _SEGMENT.unpack_from(body)
    return SegmentItem(SegmentKind(kind), n_records, committed)


def pack_session(item: SessionItem) -> bytes:
    """Body of a session."""
    name = item.name.encode()
    flags = item.flags | _HAS_KEY if item.key_id else item.flags
    return _SESSION.pack(*item[:13], len(name)) + name + _SESSION_MORE.pack(flags, *item[15:17]) + item.key_id


def unpack_session(body: bytes) -> SessionItem:
    """The session of `pack_session`."""
    *counters, name_bytes = _SESSION.unpack_from(body)
    name_end = _SESSION.size + name_bytes
    name = body[_SESSION.size : name_end].decode()
    flags, family, n_forgotten = _SESSION_MORE.unpack_from(_lengthened(body, name_end + _SESSION_MORE.size), name_end)
    key_id = body[name_end + _SESSION_MORE.size :][:_KEY_ID_BYTES] if flags & _HAS_KEY else b""
    return SessionItem._make([*counters, name, SessionFlags(flags & ~_HAS_KEY), family, n_forgotten, key_id])


def _lengthened(body: bytes, n_bytes: int) -> bytes:
    """The body of a row that an earlier livingkv wrote shorter."""
    return body.ljust(n_bytes, b"\0")


def pack_source(item: SourceItem) -> bytes:
    """Body of a source."""
    name = item.name.encode("utf-8", "surrogateescape")
    digest = item.digest.encode()
    fixed = _SOURCE.pack(item.n_tokens, item.n_bytes, item.n_sentences, item.complete, len(name), len(digest))
    return fixed + name + digest


def unpack_source(body: bytes) -> SourceItem:
    """The source of `pack_source`."""
    n_tokens, n_bytes, n_sentences, flags, name_bytes, digest_bytes = _SOURCE.unpack_from(body)
    name_end = _SOURCE.size + name_bytes
    name = body[_SOURCE.size : name_end].decode("utf-8", "surrogateescape")
    digest = body[name_end : name_end + digest_bytes].decode()
    return SourceItem(n_tokens, n_bytes, n_sentences, bool(flags & 1), name, digest)


def pack_chunk_item(item: ChunkItem) -> bytes:
    """Body of a chunk."""
    location = item.location
    return _CHUNK.pack(location.segment, item.owner, location.offset, location.length, *item[2:])


def unpack_chunk_item(body: bytes) -> ChunkItem:
    """The chunk of `pack_chunk_item`."""
    segment, owner, offset, length, *rest = _CHUNK.unpack_from(_lengthened(body, _CHUNK.size))
    return ChunkItem(Location(segment, offset, length), owner, *rest)


def pack_page(item: PageItem) -> bytes:
    """Body of a page."""
    location = item.location
    return _PAGE.pack(location.segment, item.owner, location.offset, location.length, item.state)


def unpack_page(body: bytes) -> PageItem:
    """The page of `pack_page`."""
    segment, owner, offset, length, state = _PAGE.unpack_from(_lengthened(body, _PAGE.size))
    return PageItem(Location(segment, offset, length), owner, PageState(state))


def pack_place(location: Location) -> bytes:
    """Body of a session record's place."""
    return _PLACE.pack(*location)


def unpack_place(body: bytes) -> Location:
    """The place of `pack_place`."""
    return Location(*_PLACE.unpack_from(body))


def key_place(location: Location) -> bytes:
    """Key of an erasure."""
    return _KEY_PLACE.pack(location.segment, location.offset)


def pack_erasure(item: Erasure) -> bytes:
    """Body of an erasure."""
    return _ERASURE.pack(item.location.length, item.overwrite)


def unpack_erasure(key: bytes, body: bytes) -> Erasure:
    """The erasure of `key_place` and `pack_erasure`."""
    length, overwrite = _ERASURE.unpack_from(body)
    segment, offset = _KEY_PLACE.unpack(key)
    return Erasure(Location(segment, offset, length), bool(overwrite))


def pack_weight(item: Weight) -> bytes:
    """Body of a sentence's weight."""
    return _WEIGHT.pack(*item)


def unpack_weight(body: bytes) -> Weight:
    """The weight of `pack_weight`."""
    return Weight(*_WEIGHT.unpack_from(body))


def key_age(stored_ms: int, key: bytes) -> bytes:
    """Key under which a request is found by its age."""
    return _KEY_LONG.pack(stored_ms) + key


def pack_request(item: StoredRequest) -> bytes:
    """Body of a stored request."""
    return _REQUEST.pack(*item)


def unpack_request(body: bytes) -> StoredRequest:
    """The request of `pack_request`."""
    return StoredRequest(*_REQUEST.unpack_from(body))
