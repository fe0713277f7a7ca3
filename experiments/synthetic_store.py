"""Stores without a model: pages of the default model's size and random content, prose with plausible token counts."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import numpy as np

from experiments.haystack import shuffled_filler
from livingkv.store import Append, Fingerprint, SentenceRecord, Store

PAGE_TOKENS = 64
PAGE_BYTES = 405_520
"""An int8 page of the default model: 24 layers, 2 KV heads, head_dim 64."""
COMMIT_TOKENS = 4096
_BYTES_A_TOKEN = 4.4
_FINGERPRINT = Fingerprint(
    model="synthetic", tokenizer="synthetic", rope="none", dtype="bfloat16", quantization="none", codec="int8",
    page_tokens=PAGE_TOKENS,
)  # fmt: skip


def create_store(path: Path, *, disk_budget_bytes: int | None = None) -> Store:
    """A new store, open for writing."""
    return Store.open(path, mode="write", fingerprint=_FINGERPRINT, create=True, disk_budget_bytes=disk_budget_bytes)


class SyntheticSession:
    """Makes the appends of one session, each of whole pages. The same seed and lengths give the same appends.

    session_id: a session that is there, whose appends are made once more from the first; None makes a new one.
    """

    def __init__(
        self,
        store: Store,
        seed: int,
        *,
        page_bytes: int = PAGE_BYTES,
        sentence_tokens: int = 12,
        name: str = "synthetic",
        session_id: int | None = None,
    ) -> None:
        self._store = store
        self._session_id = store.create_session(name).session_id if session_id is None else session_id
        self._sentence_tokens = sentence_tokens
        self._rng = random.Random(seed)
        self._ids = np.random.default_rng(seed)
        self._sentences = shuffled_filler(seed)
        self._page = self._rng.randbytes(page_bytes)
        self._n_tokens = self._n_bytes = self._n_pages = 0

    def next(self, n_tokens: int) -> Append:
        """The next append: a multiple of 64 tokens, prose for them, pages that differ, no tail."""
        texts = [text.encode() for text in islice(self._sentences, max(1, n_tokens // self._sentence_tokens))]
        joined = (b" ".join(texts) + b" ")[: int(n_tokens * _BYTES_A_TOKEN)]
        joined = joined.decode(errors="ignore").encode()
        spans, byte, token = [], 0, 0
        for text in texts:
            end = min(byte + len(text) + 1, len(joined))
            if end <= byte:
                break
            last = n_tokens if end == len(joined) else max(token + 1, min(n_tokens, int(end / _BYTES_A_TOKEN)))
            lo, hi = self._n_bytes + byte, self._n_bytes + end
            spans.append(SentenceRecord(lo, hi, self._n_tokens + token, self._n_tokens + min(last, n_tokens)))
            byte, token = end, min(last, n_tokens)
        append = Append(
            session_id=self._session_id, first_token=self._n_tokens,
            token_ids=self._ids.zipf(1.3, n_tokens).clip(0, 150_000).astype(np.int32), text=joined,
            sentences=tuple(spans), source="synthetic", role="document",
            pages=tuple(self._next_page() for _ in range(n_tokens // PAGE_TOKENS)), tail=b"", end_of_source=False,
            source_digest="synthetic", ends_turn=False,
        )  # fmt: skip
        self._n_tokens += n_tokens
        self._n_bytes += len(joined)
        return append

    def _next_page(self) -> bytes:
        self._n_pages += 1
        return self._n_pages.to_bytes(8, "little") + self._page[8:]

    def fill(self, n_tokens: int, appends_a_commit: int = 1) -> None:
        """Append so many tokens, 4,096 an append."""
        while self._n_tokens < n_tokens:
            group: list[Append] = []
            while self._n_tokens < n_tokens and len(group) < appends_a_commit:
                group.append(self.next(min(COMMIT_TOKENS, n_tokens - self._n_tokens)))
            self._store.append_all(group)
