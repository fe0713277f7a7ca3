"""A turn of a conversation as the store's appends: one for each segment, all in one commit.

Knows segments, pages and appends; runs nothing through a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from livingkv.conversation_mark import DIGEST, SOURCE
from livingkv.framing import Words
from livingkv.generation import Generated
from livingkv.server.rendering import records
from livingkv.server.segments import Segment
from livingkv.settings import PAGE_TOKENS
from livingkv.store import Append, SentenceRecord, SessionRow, TokenIds
from livingkv.text import split_sentences


def reply_segment(words: Words, token_ids: Sequence[int]) -> Segment:
    """Generated tokens as a segment: the text that they stand for, and its sentences."""
    stream = words.stream()
    return pieces_segment(token_ids, [stream.push(token) for token in token_ids])


def pieces_segment(token_ids: Sequence[int], pieces: Sequence[str]) -> Segment:
    """Tokens of a reply with the text that each of them made certain."""
    text = "".join(pieces)
    spans = split_sentences(text.encode()) if text else []
    starts = np.cumsum([0, *(len(piece.encode()) for piece in pieces)])[: len(token_ids)]
    borders = np.searchsorted(starts, [*(span.byte_lo for span in spans), len(text.encode())]).tolist()
    tokens = list(pairwise(borders))
    return Segment("assistant", np.array(token_ids, np.int32), text, records(spans, tokens))


def kept_of(words: Words, generated: Generated) -> tuple[int, list[int]]:
    """What stays of a reply that was cut before a stop string: how many of its tokens, and tokens for the rest of its
    text, where the cut is inside of one. Of a reply without text nothing stays: nobody will send it back."""
    if not generated.text:
        return 0, []
    n_kept = n_chars = 0
    for n, piece in enumerate(generated.pieces, 1):
        if n_chars + len(piece) > len(generated.text):
            break
        if piece:
            n_kept, n_chars = n, n_chars + len(piece)
    if n_chars == len("".join(generated.pieces)):  # nothing was cut: a character that is not whole yet stays
        return len(generated.token_ids), []
    return n_kept, words.encode(generated.text[n_chars:])


def appends_of(
    session: SessionRow, segments: Sequence[Segment], pages: Sequence[bytes], tail: bytes
) -> Iterator[Append]:
    """The appends that make segments the next part of a session, whose new pages and tail these are."""
    first, n_bytes, done = session.n_tokens, session.n_bytes, 0
    for number, segment in enumerate(segments, 1):
        end = first + len(segment.ids)
        n_pages = end // PAGE_TOKENS - first // PAGE_TOKENS
        text = segment.text.encode() if segment.role != "template" else b""
        is_last = number == len(segments)
        yield Append(
            session_id=session.session_id,
            first_token=first,
            token_ids=_ids(segment),
            text=text,
            sentences=tuple(_moved(sentence, n_bytes, first) for sentence in segment.sentences),
            source=SOURCE,
            role=segment.role,
            pages=tuple(pages[done : done + n_pages]),
            tail=tail if is_last else b"",
            end_of_source=True,
            source_digest=DIGEST,
            ends_turn=segment.role == "assistant",
        )
        first, n_bytes, done = end, n_bytes + len(text), done + n_pages
    assert done == len(pages), "every page belongs to a segment"


def _ids(segment: Segment) -> TokenIds:
    return segment.ids.astype(np.int32)


def _moved(sentence: SentenceRecord, n_bytes: int, n_tokens: int) -> SentenceRecord:
    return SentenceRecord(
        sentence.byte_lo + n_bytes,
        sentence.byte_hi + n_bytes,
        sentence.token_lo + n_tokens,
        sentence.token_hi + n_tokens,
    )
