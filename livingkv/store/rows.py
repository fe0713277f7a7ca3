"""What goes into a store and what comes out of it, as typed values. Knows no bytes and no files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

Role = Literal["document", "user", "assistant", "template"]
TokenIds = npt.NDArray[np.int32]  # [tokens]
_DIGEST_BYTES = 16


class SentenceRecord(NamedTuple):
    """A sentence's half-open spans in its session's text (bytes) and token stream, both absolute."""

    byte_lo: int
    byte_hi: int
    token_lo: int
    token_hi: int


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """One durable step of one session.

    first_token: must equal the session's `n_tokens`.
    pages, tail: a text-only session may go without.
    sentences: tile `text`; absolute spans, the text beginning at the session's `n_bytes`.
    pages: all pages that became full with these tokens; the first has index `n_sealed_tokens // page_tokens`.
    tail: KV of the tokens past the last full page, opaque. Replaces the session's tail.
    source_digest: content hash of the whole source; with the name it is the source's identity in the session.
    end_of_source: the source is complete with this append.
    ends_turn: the session's turn count goes up by one.
    """

    session_id: int
    first_token: int
    token_ids: TokenIds
    text: bytes
    sentences: tuple[SentenceRecord, ...]
    source: str
    role: Role
    pages: tuple[bytes | memoryview, ...] = ()
    tail: bytes = b""
    end_of_source: bool = False
    source_digest: str = ""
    ends_turn: bool = False


class IdempotencyKey(NamedTuple):
    """The key of a request that may come again, and what it asks: digests, 16 bytes each."""

    key: bytes
    digest: bytes

    @classmethod
    def of(cls, key: str, asked: bytes) -> Self:
        """The key that a client chose, and all that its request says. What was asked cannot be guessed from the digest
        without the key, which is not stored."""
        named = hashlib.blake2b(key.encode("utf-8", "surrogatepass")).digest()
        return cls(
            hashlib.blake2b(named, digest_size=_DIGEST_BYTES, person=b"livingkv key").digest(),
            hashlib.blake2b(asked, digest_size=_DIGEST_BYTES, key=named).digest(),
        )


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session as the last commit left it. Times are Unix seconds; `sources` are distinct names, oldest first.

    text_only: appends may come without KV. needs_tail: the KV of the tokens past `n_sealed_tokens` is not stored;
    it can be recomputed from their ids and given to `Store.replace_pages`. pinned: a quota leaves its pages alone.
    `n_sentences` leaves out those that were forgotten. encrypted: without its key `sources` is empty.
    """

    session_id: int
    name: str
    n_tokens: int
    n_sealed_tokens: int
    n_bytes: int
    n_sentences: int
    n_turns: int
    created_s: float
    updated_s: float
    sources: tuple[str, ...]
    text_only: bool = False
    needs_tail: bool = False
    pinned: bool = False
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class SourceRow:
    """What a session holds of one source: an ingest that broke off continues at byte `n_bytes` of it."""

    session_id: int
    name: str
    digest: str
    n_tokens: int
    n_bytes: int
    n_sentences: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Sentence:
    """One stored sentence. Spans are half-open and absolute in the session's text and token stream. created_s: when it
    was appended, Unix seconds."""

    sentence_id: int
    session_id: int
    session: str
    byte_lo: int
    byte_hi: int
    token_lo: int
    token_hi: int
    source: str
    role: Role
    raw: bytes
    encrypted: bool = False
    created_s: float = 0.0

    @property
    def text(self) -> str:
        """`raw` as text; bytes that are not UTF-8 (a reply cut inside a character) show as U+FFFD."""
        return self.raw.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class ForgetReceipt:
    """What was forgotten, given only when its bytes are gone from the store's files. The index is the caller's.

    sentence_ids: to be removed from the index. n_pages: pages whose KV held forgotten tokens and was erased, for no
    relative needs it. n_later_pages: pages behind them whose KV was computed while attending them and that no relative
    needs; erased if the forgetting was deep.
    n_bytes: bytes of text. bytes_erased: stored bytes that were overwritten. bytes_freed: disk space that is free now.
    bytes_awaiting: disk space, overwritten already, that `defrag` frees.
    n_keys: keys that were destroyed, so that copies of what they sealed cannot be opened either.
    keys_left: files of keys that no session needs any more and that were in no known folder: they are not destroyed.
    """

    sentence_ids: tuple[int, ...]
    n_tokens: int
    n_pages: int
    n_later_pages: int
    n_bytes: int
    bytes_erased: int
    bytes_freed: int
    bytes_awaiting: int
    n_keys: int = 0
    keys_left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DefragReport:
    """What a defragmentation moved: segments that are gone, records that were copied, bytes of all segments."""

    n_segments: int
    n_records: int
    bytes_before: int
    bytes_after: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SentenceWeight:
    """How warm a sentence is now, when it was last recalled (Unix seconds), and how often."""

    sentence_id: int
    weight: float
    recalled_s: float
    hits: int


@dataclass(frozen=True, slots=True)
class ArchivedSentence:
    """A pruned sentence. `text` has bytes that are not UTF-8 as surrogates (`surrogateescape`).

    sealed: source and text of an encrypted session's, which are empty then; empty where they were opened.
    """

    sentence_id: int
    session_id: int
    session: str
    source: str
    role: Role
    text: str
    sealed: str = ""


class ChunkRow(NamedTuple):
    """What one append of a session covers: half-open spans of its tokens and of its text's bytes, and its sentences,
    forgotten ones too. source: its name, empty where it was forgotten."""

    token_lo: int
    token_hi: int
    byte_lo: int
    byte_hi: int
    role: Role
    source: str
    n_sentences: int


@dataclass(frozen=True, slots=True)
class PortableChunk:
    """One append of an exported session, for ingesting its text again. Forgotten sentences read as spaces."""

    text: bytes
    source: str
    source_digest: str
    role: Role
    end_of_source: bool
    ends_turn: bool


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a catalog that was rebuilt from the segments holds.

    sessions_without_tail: the KV of their newest tokens was in the lost catalog only; recompute it from their ids.
    problems: one line for each thing that the segments did not have. Weights are gone; the index is to be rebuilt.
    """

    path: str
    n_sessions: int
    n_tokens: int
    n_pages: int
    sessions_without_tail: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Size and shape of a store. The values of `bytes_by_part` add up to `size_bytes`, the real sizes of its files.

    held_bytes: what the file system holds of them, in whole blocks: what `disk_budget_bytes` (None: none) is about.
    """

    n_sessions: int
    n_tokens: int
    n_bytes: int
    n_sentences: int
    n_pages: int
    n_chunks: int
    size_bytes: int
    bytes_by_part: dict[str, int]
    held_bytes: int
    disk_budget_bytes: int | None
