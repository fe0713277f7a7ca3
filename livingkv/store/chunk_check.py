"""Whether the parts of a chunk fit together (FORMAT.md, section 5), as `check` and an import need to know.

Knows one chunk; refuses to know its neighbours and its row.
"""

from __future__ import annotations

from collections.abc import Iterator

from livingkv.store.chunk_payload import Chunk


def chunk_problems(chunk: Chunk) -> Iterator[str]:
    """What does not fit, a line each. Raises RecordDamaged for parts that cannot be read at all."""
    if len(chunk.token_ids()) != chunk.n_tokens or len(chunk.text()) != chunk.n_bytes:
        yield "token ids or text do not fit their counts"
    ends, token_lo, token_hi = (column.tolist() for column in chunk.spans())
    if (ends[-1] if ends else 0) != chunk.n_bytes or sorted(set(ends)) != ends or 0 in ends:
        yield "sentences do not tile the text"
    if any(not 0 <= lo <= hi <= chunk.n_tokens for lo, hi in zip(token_lo, token_hi, strict=True)):
        yield "a sentence's tokens lie outside the chunk"
