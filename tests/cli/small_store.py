"""A real store with one page and two sentences, made without a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from livingkv.store import Append, Fingerprint, SentenceRecord, Store

FINGERPRINT = Fingerprint(
    model="tiny:0123", tokenizer="tiny:4567", rope="theta=1e6", dtype="bfloat16", quantization="none", codec="int8"
)
LABELS = {"model": "tiny", "n_sinks": "4", "bf16_bytes_per_token": "512"}
TEXT = "The shed is blue. Grüße."


def make_small_store(path: Path) -> None:
    """Makes the store; its session is called default."""
    data = TEXT.encode()
    with Store.open(path, mode="write", fingerprint=FINGERPRINT, create=True, labels=LABELS) as store:
        session = store.create_session("default")
        store.append(
            Append(
                session_id=session.session_id,
                first_token=0,
                token_ids=np.arange(70, dtype=np.int32),
                text=data,
                sentences=(SentenceRecord(0, 17, 0, 64), SentenceRecord(17, len(data), 64, 70)),
                source="note.txt",
                role="document",
                pages=(b"page" * 1000,),
                tail=b"tail",
                end_of_source=True,
                source_digest="00",
            )
        )
