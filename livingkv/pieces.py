"""A source's text in pieces: what is read, committed and indexed at once during an ingest.

Knows text and sentences. Pieces are the same for the same text wherever one starts, so that an ingest that broke
off goes on exactly where the last commit stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from livingkv.text import SentenceSpan, split_sentences

BYTES_PER_TOKEN = 4
"""About what a token of prose covers; only sizes pieces."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of whole sentences: bytes [byte_lo, byte_hi) of its source; `spans` count from byte_lo."""

    byte_lo: int
    byte_hi: int
    spans: tuple[SentenceSpan, ...]


def source_digest(text: bytes) -> str:
    """Identity of a source's bytes within a session (XXH3, 128 bits, hex)."""
    return xxhash.xxh3_128_hexdigest(text)


def split_pieces(
    text: bytes, piece_tokens: int, start: int = 0, between: Callable[[], None] | None = None
) -> Iterator[Piece]:
    """The text from byte `start` in pieces of about `piece_tokens` tokens cut between sentences. between: as for
    `split_sentences`."""
    spans: list[SentenceSpan] = []
    for whole in split_sentences(text, between=between):
        if whole.byte_hi <= start:
            continue
        span = SentenceSpan(max(whole.byte_lo, start), whole.byte_hi)
        if spans and span.byte_hi - spans[0].byte_lo > piece_tokens * BYTES_PER_TOKEN:
            yield _piece(spans)
            spans = []
        spans.append(span)
    if spans:
        yield _piece(spans)


def _piece(spans: Sequence[SentenceSpan]) -> Piece:
    lo = spans[0].byte_lo
    return Piece(lo, spans[-1].byte_hi, tuple(SentenceSpan(s.byte_lo - lo, s.byte_hi - lo) for s in spans))
