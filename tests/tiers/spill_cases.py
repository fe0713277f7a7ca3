"""Many sessions spilled and restored at once: real KV through codec, store and RAM tier, each compared by checksum."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from livingkv.codec import KV, page_bytes
from livingkv.engine import Engine
from livingkv.models import from_network
from livingkv.settings import PAGE_TOKENS
from livingkv.store import Append, Store
from livingkv.tiers import TieredPages, budget_for, open_pages
from livingkv.tiers.pinning import pin_for_cuda
from tests.tiny import tiny_network, tiny_tokenizer

N_ROOMS = 16
"""Rooms of the RAM tier: a fraction of the sessions, so that each restoring evicts what another one needs."""


def checksum(kv: KV) -> int:
    """Of the bits of keys and values, wherever they are."""
    return xxh3_64_intdigest(b"".join(_bytes(part) for part in kv))


def _bytes(part: Tensor) -> bytes:
    return part.contiguous().cpu().view(torch.uint8).numpy().tobytes()


class SpillLoops:
    """Sessions of one store that threads append pages to and read back from the tiers; `n_wrong` must stay 0."""

    def __init__(self, path: Path, device: torch.device) -> None:
        network = tiny_network("qwen2", dtype=torch.bfloat16).to(device)
        self.device = device
        self.engine = Engine.of(from_network(network, tiny_tokenizer(), name="tiny"), "int8")
        self.store = Store.open(path, mode="write", fingerprint=self.engine.fingerprint(), create=True)
        size = page_bytes("int8", self.engine.shape)
        pinned = pin_for_cuda if device.type == "cuda" else None
        self.pages: TieredPages = open_pages(
            self.store, page_bytes=size, ram_budget_bytes=budget_for(N_ROOMS, size), register=pinned
        )
        self.n_restored = self.n_wrong = 0
        self._sums: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()

    def run(self, n_threads: int, n_loops: int, run_threads: Callable[[Callable[[int], None], int], None]) -> None:
        """Every thread spills a page into its own session, then restores it and a page of another one, and so on."""
        ids = [self.store.create_session(f"session {number}").session_id for number in range(n_threads)]

        def work(number: int) -> None:
            stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream) if stream else nullcontext():
                for loop in range(n_loops):
                    self._spill(ids[number], loop, seed=1000 * number + loop)
                    self._restore(ids[number], loop)
                    other = ids[(number * 7 + loop) % n_threads]
                    if loop and (other, loop - 1) in self._sums:
                        self._restore(other, loop - 1)

        run_threads(work, n_threads)

    def _spill(self, session_id: int, page: int, seed: int) -> None:
        layers, heads, dim, dtype = self.engine.shape
        random = torch.Generator().manual_seed(seed)
        made = torch.randn(2, layers, heads, PAGE_TOKENS, dim, generator=random).to(self.device, dtype)
        (data,) = self.engine.codec.encode(KV(made[0], made[1]), page * PAGE_TOKENS)
        expected = checksum(self._decoded(data, page))
        self.store.append(
            Append(
                session_id=session_id,
                first_token=page * PAGE_TOKENS,
                token_ids=np.zeros(PAGE_TOKENS, np.int32),
                text=b"",
                sentences=(),
                source="spill",
                role="document",
                pages=(data,),
                tail=b"",
                end_of_source=False,
                source_digest="spill",
                ends_turn=False,
            )
        )
        with self._lock:
            self._sums[session_id, page] = expected

    def _restore(self, session_id: int, page: int) -> None:
        with self.pages.lease(session_id, [page]) as (view,):
            found = self._decoded(view, page)
        same = checksum(found) == self._sums[session_id, page]  # the room may be another page's by now
        with self._lock:
            self.n_restored += 1
            self.n_wrong += not same

    def _decoded(self, data: bytes | memoryview, page: int) -> KV:
        return self.engine.codec.decode([data], [page * PAGE_TOKENS], self.device)

    def close(self) -> None:
        """Close tiers and store."""
        self.pages.close()
        self.store.close()
