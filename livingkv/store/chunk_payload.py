"""The payload of a chunk record (FORMAT.md, section 5): one append's ids, text, sentence spans and source.

Knows one payload's bytes; refuses to know where they stand. Its checksum has been verified before `Chunk` reads it.
Packing and reading stand in one file, since neither may change without the other.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from livingkv.errors import FormatUnsupported, RecordDamaged
from livingkv.store.rows import Append, Role, SentenceRecord, TokenIds

_FIXED = struct.Struct("<QQQQIIIIBBBBIIIIIII")
_COMPRESSED = 16
_END_OF_SOURCE = 1
_ENDS_TURN = 2
_NARROW = 1 << 16
TEXT_BLOCK_BYTES = 2048
FIXED_BYTES = _FIXED.size
ROLES: tuple[Role, ...] = get_args(Role)


class ChunkPlace(NamedTuple):
    """Where an append falls in its session and store."""

    first_token: int
    first_byte: int
    first_sentence: int
    time_ms: int


class _Fixed(NamedTuple):
    """The fixed part, field by field."""

    first_token: int
    first_byte: int
    first_sentence: int
    time_ms: int
    n_tokens: int
    n_bytes: int
    n_sentences: int
    n_pages: int
    role: int
    flags: int
    id_packing: int
    text_packing: int
    source_bytes: int
    digest_bytes: int
    span_bytes: int
    token_id_bytes: int
    text_bytes: int
    forgotten_bytes: int
    zero: int


class PackedChunk(NamedTuple):
    """A payload and the stored sizes of its parts, in bytes."""

    payload: bytes
    span_bytes: int
    token_id_bytes: int
    text_bytes: int


def role_number(role: Role) -> int:
    """The byte that stands for a role."""
    return ROLES.index(role) + 1


def role_of(number: int) -> Role:
    """The role that a byte stands for. Raises FormatUnsupported for one of a later version."""
    if not 1 <= number <= len(ROLES):
        raise FormatUnsupported(f"role {number}: update livingkv to read it")
    return ROLES[number - 1]


def pack_chunk(
    append: Append, place: ChunkPlace, *, n_sealed_pages: int | None = None, forgotten: Sequence[int] = ()
) -> PackedChunk:
    """The payload of an append that has been checked.

    n_sealed_pages: given for a text-only append, which seals pages without having them.
    forgotten: sentences, counted in the chunk, whose text and ids have been blanked.
    """
    source = append.source.encode("utf-8", "surrogateescape")
    digest = append.source_digest.encode()
    spans = _pack_spans(append, place)
    width, token_ids = _pack_token_ids(append.token_ids)
    blocks = _pack_text(append.text)
    text = append.text if blocks is None else blocks
    flags = _END_OF_SOURCE * append.end_of_source | _ENDS_TURN * append.ends_turn
    fixed = _FIXED.pack(
        *place,
        len(append.token_ids),
        len(append.text),
        len(append.sentences),
        len(append.pages) if n_sealed_pages is None else n_sealed_pages,
        role_number(append.role),
        flags,
        width,
        blocks is not None,
        len(source),
        len(digest),
        len(spans),
        len(token_ids),
        len(text),
        4 * len(forgotten),
        0,
    )
    tombstones = np.array(forgotten, dtype="<u4").tobytes()
    payload = b"".join((fixed, source, digest, spans, token_ids, text, tombstones))
    return PackedChunk(payload, len(spans), len(token_ids), len(text))


def renumbered(payload: bytes, first_sentence: int) -> bytes:
    """A chunk's payload whose sentences are numbered from `first_sentence` on."""
    fixed = _Fixed._make(_FIXED.unpack_from(payload))._replace(first_sentence=first_sentence)
    return _FIXED.pack(*fixed) + payload[FIXED_BYTES:]


def _span_type(n_bytes: int, n_tokens: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u2" if n_bytes < _NARROW and n_tokens < _NARROW else "<u4")


def _pack_spans(append: Append, place: ChunkPlace) -> bytes:
    """Three arrays: end bytes, first tokens, end tokens, relative to the chunk."""
    if not append.sentences:
        return b""
    spans = np.array(append.sentences, dtype=np.int64)  # [sentences, 4]
    columns = np.stack(
        (spans[:, 1] - place.first_byte, spans[:, 2] - place.first_token, spans[:, 3] - place.first_token)
    )
    return columns.astype(_span_type(len(append.text), len(append.token_ids))).tobytes()


def _pack_token_ids(token_ids: TokenIds) -> tuple[int, bytes]:
    """Bytes per id (+ 16 if compressed), and the ids as byte planes."""
    if not len(token_ids):
        return 1, b""
    width = max(1, (int(token_ids.max()).bit_length() + 7) // 8)
    octets = token_ids.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width]  # [tokens, width]
    planes = np.ascontiguousarray(octets.T).tobytes()
    compressed = zlib.compress(planes)
    return (width + _COMPRESSED, compressed) if len(compressed) < len(planes) else (width, planes)


def _pack_text(text: bytes) -> bytes | None:
    """Compressed blocks with their lengths in front, or None if that is not smaller than the text."""
    blocks = [zlib.compress(text[start : start + TEXT_BLOCK_BYTES]) for start in range(0, len(text), TEXT_BLOCK_BYTES)]
    packed = np.array([len(block) for block in blocks], dtype="<u4").tobytes() + b"".join(blocks)
    return packed if len(packed) < len(text) else None


class Chunk:
    """A chunk's payload, read part by part when asked. Raises RecordDamaged where the parts do not fit together."""

    def __init__(self, payload: bytes) -> None:
        if len(payload) < FIXED_BYTES:
            raise RecordDamaged("chunk record: shorter than its fixed part")
        fixed = _Fixed._make(_FIXED.unpack_from(payload))
        parts = fixed[12:18]
        if fixed.text_packing not in (0, 1):
            raise FormatUnsupported(f"chunk record: text packing {fixed.text_packing}: update livingkv to read it")
        if FIXED_BYTES + sum(parts) != len(payload):
            raise RecordDamaged("chunk record: its parts do not add up to its length")
        if not fixed.text_packing and fixed.text_bytes != fixed.n_bytes:
            raise RecordDamaged("chunk record: the text does not fit its length")
        self.place = ChunkPlace(*fixed[:4])
        self.n_tokens, self.n_bytes, self.n_sentences, self.n_pages = fixed[4:8]
        self.role = role_of(fixed.role)
        self.end_of_source = bool(fixed.flags & _END_OF_SOURCE)
        self.ends_turn = bool(fixed.flags & _ENDS_TURN)
        self.span_bytes, self.token_id_bytes, self.text_bytes = fixed[14:17]
        self._id_packing = fixed.id_packing
        self._text_is_packed = bool(fixed.text_packing)
        self.payload = self._payload = payload
        self._ends = [FIXED_BYTES + sum(parts[:count]) for count in range(len(parts) + 1)]

    def _part(self, number: int) -> bytes:
        return self._payload[self._ends[number] : self._ends[number + 1]]

    @property
    def source(self) -> str:
        """The source's name."""
        return self._part(0).decode("utf-8", "surrogateescape")

    @property
    def source_digest(self) -> str:
        """The source's digest."""
        try:
            return self._part(1).decode()
        except UnicodeDecodeError as error:
            raise RecordDamaged("chunk record: the source's digest is not UTF-8") from error

    @property
    def forgotten(self) -> frozenset[int]:
        """Sentences, counted in the chunk, that were forgotten."""
        if (self._ends[6] - self._ends[5]) % 4:
            raise RecordDamaged("chunk record: forgotten sentences are not whole numbers")
        return frozenset(np.frombuffer(self._part(5), dtype="<u4").tolist())

    def token_ids(self) -> TokenIds:
        """All token ids, [tokens] int32."""
        width = self._id_packing % _COMPRESSED
        planes = self._part(3)
        if self._id_packing >= _COMPRESSED:
            planes = _inflate(planes, width * self.n_tokens)
        if not 1 <= width <= 4 or len(planes) != width * self.n_tokens:
            raise RecordDamaged("chunk record: token ids do not fit their count")
        octets = np.zeros((self.n_tokens, 4), dtype=np.uint8)  # [tokens, 4]
        octets[:, :width] = np.frombuffer(planes, dtype=np.uint8).reshape(width, self.n_tokens).T
        ids = octets.view("<i4").reshape(-1).astype(np.int32, copy=False)
        if len(ids) and ids.min() < 0:
            raise RecordDamaged("chunk record: a token id is 2^31 or higher")
        return ids

    def spans(self) -> npt.NDArray[np.int64]:
        """End byte, first token, end token of each sentence, relative to the chunk: [3, sentences]."""
        kind = _span_type(self.n_bytes, self.n_tokens)
        part = self._part(2)
        if len(part) != 3 * self.n_sentences * kind.itemsize:
            raise RecordDamaged("chunk record: sentence spans do not fit their count")
        return np.frombuffer(part, dtype=kind).reshape(3, self.n_sentences).astype(np.int64)

    def sentence(self, number: int) -> SentenceRecord:
        """The absolute spans of the chunk's sentence `number`, without unpacking the others."""
        kind = "<H" if _span_type(self.n_bytes, self.n_tokens).itemsize == 2 else "<I"
        step = struct.calcsize(kind)
        start = self._ends[2]
        if self._ends[3] - start != 3 * self.n_sentences * step:
            raise RecordDamaged("chunk record: sentence spans do not fit their count")

        def value(row: int, column: int) -> int:
            return int(struct.unpack_from(kind, self._payload, start + (row * self.n_sentences + column) * step)[0])

        first_token, first_byte = self.place.first_token, self.place.first_byte
        byte_lo = value(0, number - 1) if number else 0
        return SentenceRecord(
            first_byte + byte_lo,
            first_byte + value(0, number),
            first_token + value(1, number),
            first_token + value(2, number),
        )

    def text(self, lo: int = 0, hi: int | None = None) -> bytes:
        """Bytes [lo, hi) of the chunk's text; only the blocks that hold them are inflated."""
        hi = self.n_bytes if hi is None else hi
        if not self._text_is_packed:
            text = self._payload[self._ends[4] + lo : self._ends[4] + hi]
        else:
            first, last = lo // TEXT_BLOCK_BYTES, -(-hi // TEXT_BLOCK_BYTES)
            text = b"".join(self._text_blocks(first, last))
            text = text[lo - first * TEXT_BLOCK_BYTES : hi - first * TEXT_BLOCK_BYTES]
        if len(text) != max(0, hi - lo):
            raise RecordDamaged("chunk record: the text does not fit its length")
        return text

    def _text_blocks(self, first: int, last: int) -> list[bytes]:
        n_blocks = -(-self.n_bytes // TEXT_BLOCK_BYTES)
        start = self._ends[4]
        if start + 4 * n_blocks > self._ends[5]:
            raise RecordDamaged("chunk record: the text does not fit its length")
        lengths = struct.unpack_from(f"<{n_blocks}I", self._payload, start)
        offset = start + 4 * n_blocks + sum(lengths[:first])
        blocks = []
        for number, length in enumerate(lengths[first:last], first):
            n_bytes = min(TEXT_BLOCK_BYTES, self.n_bytes - number * TEXT_BLOCK_BYTES)
            blocks.append(_inflate(self._payload[offset : offset + length], n_bytes))
            offset += length
        return blocks


def _inflate(data: bytes, n_bytes: int) -> bytes:
    """What inflates to `n_bytes` and not to more, however much is packed into it. Raises RecordDamaged."""
    inflating = zlib.decompressobj()
    try:
        inflated = inflating.decompress(data, n_bytes + 1)
    except zlib.error as error:
        raise RecordDamaged(f"chunk record: {error}") from error
    if len(inflated) != n_bytes or not inflating.eof:
        raise RecordDamaged("chunk record: packed bytes do not fit their length")
    return inflated
