"""A store of one session of prose that grows to a wished length, read by the model or, where that would take hours,
copied: further sentences with the pages of the first ones once more.

What a probe, a restore or a step of decoding costs depends on how much is stored and not on what; answers from copied
pages mean nothing. Results say which part was copied.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from livingkv import Memory, Settings
from livingkv.home import Home
from livingkv.models import LoadedModel
from livingkv.settings import PAGE_TOKENS
from livingkv.store import Append, SentenceRecord
from livingkv.text import split_sentences

SESSION = "default"
_COPIED_TOKENS = 4096
_COPIED_PAGES = 64
_COMMIT_APPENDS = 8
_SENTENCES = 64


class GrowingStore:
    """Open for writing. A context manager.

    sentences: what is read and copied, each once; for example `shuffled_filler`.
    """

    def __init__(
        self, path: Path, model: LoadedModel, sentences: Iterator[str], *, settings: Settings | None = None
    ) -> None:
        self.path = path
        self._home = Home(path, model, settings, read_only=False, create=True)
        self._memory = Memory(self._home)
        self._memory.ready(SESSION)  # the codec's self-test is no part of reading
        self._sentences = sentences
        self._parts = len(self._home.store().sources(1)) if self._home.has_store else 0  # its only session

    @property
    def n_tokens(self) -> int:
        """Of the session."""
        return self._home.store().session(SESSION).n_tokens if self._home.has_store else 0

    def grow(self, n_tokens: int, *, read: int) -> float:
        """As `read` up to `read` tokens, and as `copy` from there on; the seconds of ingest."""
        seconds = self.read(min(n_tokens, read))
        if n_tokens > read:
            self.copy(n_tokens)
        return seconds

    def read(self, n_tokens: int) -> float:
        """Have the model read sentences until the session is about as long; the seconds of ingest alone."""
        total = 0.0
        while (missing := n_tokens - self.n_tokens) > _SENTENCES:
            text = self._prose(missing)
            started = time.perf_counter()
            self._memory.ingest(f"part {self._parts}", text=text.encode(), session=SESSION)
            total += time.perf_counter() - started
            self._parts += 1
        return total

    def copy(self, n_tokens: int) -> None:
        """Append sentences with copied pages until the session is at least as long. Something was read before."""
        store = self._home.store()
        row = store.session(SESSION)
        n_known = min(_COPIED_PAGES, row.n_sealed_tokens // PAGE_TOKENS)
        assert n_known, "there is a page to copy"
        pages = itertools.cycle(store.read_pages(row.session_id, range(n_known)))
        first, n_bytes, group = row.n_tokens, row.n_bytes, list[Append]()
        tail = store.read_tail(row.session_id)[1]
        while first < n_tokens:
            append = self._copied(row.session_id, first, n_bytes, pages, tail)
            first, n_bytes = first + _COPIED_TOKENS, n_bytes + len(append.text)
            group.append(append)
            if len(group) == _COMMIT_APPENDS or first >= n_tokens:
                store.append_all(group)
                group = []
        self._home.let_go()
        self._home.index.feed()

    def _copied(self, session_id: int, first: int, n_bytes: int, pages: Iterator[bytes], tail: bytes) -> Append:
        text = self._prose(_COPIED_TOKENS + 2 * _SENTENCES).encode()
        spans = split_sentences(text)
        encoded = self._home.engine().words.encode_sentences(text, spans)
        last = max(i for i, (lo, _) in enumerate(encoded.sentence_tokens) if lo < _COPIED_TOKENS)
        ends = [hi for _, hi in encoded.sentence_tokens[:last]] + [_COPIED_TOKENS]
        records = tuple(
            SentenceRecord(span.byte_lo + n_bytes, span.byte_hi + n_bytes, lo + first, hi + first)
            for span, (lo, _), hi in zip(spans, encoded.sentence_tokens, ends, strict=False)
        )
        self._parts += 1
        return Append(
            session_id=session_id, first_token=first, text=text[: spans[last].byte_hi], sentences=records,
            token_ids=np.array(encoded.token_ids[:_COPIED_TOKENS], np.int32), source=f"part {self._parts}",
            role="document", pages=tuple(itertools.islice(pages, _COPIED_TOKENS // PAGE_TOKENS)), tail=tail,
            end_of_source=True, source_digest=f"copied {self._parts}", ends_turn=False,
        )  # fmt: skip

    def _prose(self, n_tokens: int) -> str:
        return prose(self._home.engine().words.encode, n_tokens, self._sentences)

    def close(self) -> None:
        """Everything is durable and closed."""
        self._memory.close()

    def __enter__(self) -> GrowingStore:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()


def prose(encode: Callable[[str], Sequence[int]], n_tokens: int, sentences: Iterator[str]) -> str:
    """The next sentences, of about so many tokens, a few more at the end."""
    rows, total = list[str](), 0
    while total < n_tokens:
        more = list(itertools.islice(sentences, max(1, min(_SENTENCES, (n_tokens - total) // 16))))
        total += len(encode(" ".join(more)))
        rows += more
    return " ".join(rows) + " "


def folder_bytes(folder: Path) -> int:
    """Bytes that the files of a folder take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
