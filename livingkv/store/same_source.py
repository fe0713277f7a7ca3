"""Is a stored source the text that is given? Compared byte by byte: a digest only says where to look.

Knows a source's chunks and what was forgotten of them; refuses to know how digests are made.
"""

from __future__ import annotations

from livingkv.errors import RecordDamaged
from livingkv.store.catalog import Catalog
from livingkv.store.items import ChunkItem
from livingkv.store.reading import Reading
from livingkv.store.rows import SourceRow


def find_source(
    catalog: Catalog, reading: Reading, session_id: int, name: str, digest: str, text: bytes
) -> tuple[str, SourceRow | None]:
    """See Store.find_source."""
    number, own = 0, digest
    while True:
        row = reading.source(session_id, name, own)
        if row is None or _is_same(catalog, reading, row, text):
            return own, row
        number += 1
        own = f"{digest}+{number}"


def _is_same(catalog: Catalog, reading: Reading, row: SourceRow, text: bytes) -> bool:
    """True when `text` is the source, or goes on where it broke off. What was forgotten differs in nothing; what cannot
    be read is lost, and the text is new."""
    if row.n_bytes > len(text) or (row.complete and row.n_bytes != len(text)):
        return False
    with catalog.read() as snapshot:
        number = snapshot.source_number(row.session_id, row.name, row.digest)
        numbers = [] if number is None else list(snapshot.source_chunks(row.session_id, number, 0))
        chunks = [(chunk, snapshot.chunk(row.session_id, chunk)) for chunk in numbers]
    at = 0
    for chunk, item in chunks:
        if not _holds(reading, row.session_id, chunk, item, text[at : at + item.n_bytes]):
            return False
        at += item.n_bytes
    return True


def _holds(reading: Reading, session_id: int, number: int, item: ChunkItem, text: bytes) -> bool:
    try:
        chunk = reading.read_chunk(session_id, number, item)
        stored = chunk.text()
        if stored == text:
            return True
        forgotten = [chunk.sentence(sentence) for sentence in chunk.forgotten]
    except RecordDamaged:
        return False
    expected = bytearray(text)
    for span in forgotten:
        lo, hi = span.byte_lo - chunk.place.first_byte, span.byte_hi - chunk.place.first_byte
        expected[lo:hi] = stored[lo:hi]
    return stored == expected
