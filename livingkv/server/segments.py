"""A conversation as a token stream in pieces: what the template says, and what somebody says.

Knows tokens, texts and how pieces are compared; knows no template, no store and no KV. Two pieces are the same by what
they say, not by their tokens: a reply that a client sends back is the one that was generated, although the tokenizer
would cut its text in another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from livingkv.server.tool_calls import canonical
from livingkv.store import Role, SentenceRecord, TokenIds

NO_SENTENCES: tuple[SentenceRecord, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One piece. sentences: spans relative to the piece. A template's piece has no text."""

    role: Role
    ids: TokenIds
    text: str = ""
    sentences: tuple[SentenceRecord, ...] = NO_SENTENCES

    @property
    def identity(self) -> bytes:
        """What two pieces that are the same have in common."""
        if self.role == "template":
            return b"template\0" + self.ids.astype("<i4").tobytes()
        said = canonical(self.text) if self.role == "assistant" else self.text
        return f"{self.role}\0{said}".encode("utf-8", "surrogatepass")

    def after(self, n_tokens: int) -> Segment:
        """A template's piece without its first tokens."""
        assert self.role == "template", "text is not cut"
        return replace(self, ids=self.ids[n_tokens:])


def joined(segments: Iterable[Segment]) -> list[Segment]:
    """The segments with empty ones left out, and neighbouring pieces of the template as one."""
    found: list[Segment] = []
    for segment in segments:
        if not len(segment.ids):
            continue
        if found and found[-1].role == segment.role == "template":
            found[-1] = replace(found[-1], ids=np.concatenate([found[-1].ids, segment.ids]))
        else:
            found.append(segment)
    return found


def whole_of(parts: Sequence[Segment]) -> Segment:
    """One piece that was tokenised in parts, of one role; there is one part at least."""
    if len(parts) == 1:
        return parts[0]
    sentences: list[SentenceRecord] = []
    n_bytes = n_ids = 0
    for part in parts:
        for one in part.sentences:
            span = (one.byte_lo + n_bytes, one.byte_hi + n_bytes)
            sentences.append(SentenceRecord(*span, one.token_lo + n_ids, one.token_hi + n_ids))
        n_bytes, n_ids = n_bytes + len(part.text.encode()), n_ids + len(part.ids)
    text = "".join(part.text for part in parts)
    return Segment(parts[0].role, np.concatenate([part.ids for part in parts]), text, tuple(sentences))


def n_tokens(segments: Iterable[Segment]) -> int:
    """Tokens of all segments."""
    return sum(len(segment.ids) for segment in segments)


def chain(segments: Iterable[Segment], salt: bytes) -> list[bytes]:
    """A digest for every length of the conversation, from no segment on; `salt` is the scope's."""
    digests = [blake2b(salt, digest_size=16).digest()]
    for segment in segments:
        digests.append(blake2b(digests[-1] + segment.identity, digest_size=16).digest())
    return digests


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """How far two conversations are the same: whole segments, then tokens of the next one; tokens in all, as the
    stored one has them."""

    n_segments: int
    n_more: int
    n_tokens: int


def common_part(asked: Sequence[Segment], stored: Sequence[Segment]) -> Common:
    """How far a conversation is a stored one."""
    n, total = 0, 0
    for one, other in zip(asked, stored, strict=False):
        if one.role != other.role or one.identity != other.identity:
            more = _same_tokens(one.ids, other.ids)
            return Common(n, more, total + more)
        n, total = n + 1, total + len(other.ids)
    return Common(n, 0, total)


def _same_tokens(one: TokenIds, other: TokenIds) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
