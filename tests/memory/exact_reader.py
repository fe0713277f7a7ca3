"""A process that attends a session of random KV as mode exact does, and prints how its peak memory grew, as JSON.

python -m tests.memory.exact_reader STORE N_PAGES    makes the store, in a process of its own: what that frees is reused
python -m tests.memory.exact_reader STORE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from livingkv.codec import KV, page_bytes
from livingkv.engine import Engine
from livingkv.settings import PAGE_TOKENS
from livingkv.store import Append, Store
from livingkv.stored_kv import StoredKV
from livingkv.streaming import StreamedSpace
from livingkv.tiers import budget_for, open_pages
from tests.tiny import tiny_model

BLOCK_PAGES = 16
N_ROOMS = 8


def peak_bytes() -> int:
    """The most memory that the process had at once since the count was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0]) * 1024


def make(path: Path, engine: Engine, n_pages: int) -> None:
    """A store with one session of so many pages."""
    shape = (engine.shape.n_layers, engine.shape.n_kv_heads, PAGE_TOKENS, engine.shape.head_dim)
    with Store.open(path, mode="write", fingerprint=engine.fingerprint(), create=True) as store:
        session_id = store.create_session("main").session_id
        ids = np.zeros(PAGE_TOKENS, dtype=np.int32)
        appends = []
        for first in range(0, n_pages * PAGE_TOKENS, PAGE_TOKENS):
            pages = tuple(engine.codec.encode(KV(torch.randn(shape), torch.randn(shape)), first))
            appends.append(Append(session_id, first, ids, b"", (), "book", "document", pages, b"", False, "", False))
        store.append_all(appends)


def main() -> None:
    """See the module."""
    path = Path(sys.argv[1])
    torch.manual_seed(0)
    engine = Engine.of(tiny_model(head_dim=128, num_key_value_heads=4, max_position_embeddings=1 << 16), "int8")
    if len(sys.argv) > 2:
        make(path, engine, int(sys.argv[2]))
    else:
        print(json.dumps(attended(path, engine)))


def attended(path: Path, engine: Engine) -> dict[str, int]:
    """Three tokens read behind the session: bytes by which the peak grew, and those of its KV in fp32."""
    size = page_bytes("int8", engine.shape)
    with (
        Store.open(path, mode="read") as store,
        open_pages(store, page_bytes=size, ram_budget_bytes=budget_for(N_ROOMS, size)) as pages,
    ):
        session, kv = store.session("main"), StoredKV(store, engine, pages)
        n_cold = session.n_tokens - PAGE_TOKENS
        near = engine.workspace(2 * PAGE_TOKENS)
        near.push(kv.run(session, n_cold, session.n_tokens), n_cold)
        near.next_position = session.n_tokens
        state = StreamedSpace(near, kv.cold(session, n_cold, block_pages=BLOCK_PAGES).layer, n_cold)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is held now
        before = peak_bytes()
        for token in range(3):
            engine.runner.read(torch.tensor([40 + token]), state)
        grown = peak_bytes() - before
    decoded = 2 * n_cold * engine.shape.n_layers * engine.shape.n_kv_heads * engine.shape.head_dim * 4
    return {"grown_bytes": grown, "decoded_bytes": decoded}


if __name__ == "__main__":
    main()
