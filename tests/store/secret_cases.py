"""A store with a secret in it, whose every trace can be looked for."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from livingkv.store import Append, SentenceRecord, Store
from tests.store.store_cases import (
    PAGE_TOKENS,
    SessionModel,
    new_session,
    new_store,
)

SECRET, KEPT = b"QZXJVKWPLMNB", b"HGFDSRTYUIOP"
KV, TAIL = b"<<kv of the secret>>", b"<<tail of the secret>>"


def append_words(store: Store, model: SessionModel, words: list[bytes], *, source: str, kv: bytes) -> SessionModel:
    """One chunk in which every word is a sentence of one token."""
    first, byte, spans = len(model.ids), len(model.text), []
    for number, word in enumerate(words):
        spans.append(SentenceRecord(byte, byte + len(word), first + number, first + number + 1))
        byte += len(word)
    n_pages = (first + len(words)) // PAGE_TOKENS - len(model.pages)
    append = Append(
        session_id=model.session_id,
        first_token=first,
        token_ids=np.arange(100, 100 + len(words), dtype=np.int32),
        text=b"".join(words),
        sentences=tuple(spans),
        source=source,
        role="document",
        pages=tuple(kv + random.Random(page).randbytes(9000) + kv for page in range(n_pages)),
        tail=(TAIL if kv == KV else kv) if (first + len(words)) % PAGE_TOKENS else b"",
        source_digest=f"digest of {source}",
    )
    store.append(append)
    return model.applied(append)


def secret_store(root: Path) -> tuple[Store, SessionModel]:
    """A store whose session "SECRETNAME" has a secret in sentence 5 (page 1), 9 and 10 (tail) of 11."""
    store = new_store(root, segment_bytes=50_000)
    model = new_session(store, "SECRETNAME")
    model = append_words(store, model, [KEPT, b"b. ", b"c. ", b"d. "], source="kept.txt", kv=b"kept kv")
    model = append_words(store, model, [b"e. ", SECRET, b"f. ", b"g. "], source="SECRETFILE", kv=KV)
    return store, append_words(store, model, [b"h. ", SECRET, b"i. "], source="SECRETFILE", kv=KV)
