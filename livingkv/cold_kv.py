"""A session's pages as blocks of one layer, for attention that sees all of them and holds one.

Knows pages and the codec; knows no queries. Nothing decoded outlives its block: between layers and passes the RAM tier
keeps the pages' bytes. Pages are asked for up and down in turn, so that what the tier holds at the end of one layer is
what the next begins with: of S bytes of pages and a budget of B, each layer of each pass reads S - B from disk, and
nothing if B holds S.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

import torch

from livingkv.codec import KV
from livingkv.engine import Engine
from livingkv.errors import PageDamaged
from livingkv.settings import PAGE_TOKENS
from livingkv.store import Store
from livingkv.tiers import TieredPages

BLOCK_PAGES = 64
"""Pages attended at once: 4,096 tokens of one layer."""


class ColdKV:
    """Pages 0..n_pages-1 of one session. Not thread-safe. Raises PageDamaged if one of them has no KV."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        pages: TieredPages,
        session_id: int,
        n_pages: int,
        *,
        block_pages: int = BLOCK_PAGES,
    ) -> None:
        store.locate_pages(session_id, range(n_pages))
        self._store = store
        self._engine = engine
        self._tiers = pages
        self._session_id = session_id
        self._blocks = [range(lo, min(lo + block_pages, n_pages)) for lo in range(0, n_pages, block_pages)]
        self._upwards = True

    def layer(self, layer: int) -> Generator[tuple[int, KV], None, None]:
        """Each block's first token and KV [n_kv_heads, tokens, head_dim] of one layer, on the model's device.

        Blocks come in rising or falling order. Raises PageDamaged or RecordDamaged; then, too, close it.
        """
        step = 1 if self._upwards else -1
        self._upwards = not self._upwards
        order = [page for block in self._blocks[::step] for page in block[::step]]
        codec, device = self._engine.codec, self._engine.model.device
        with closing(self._read(order, layer)) as rows:
            for block in self._blocks[::step]:
                ordered = torch.stack([next(rows) for _ in block][::step])
                first = block.start * PAGE_TOKENS
                yield first, codec.decode_layer(ordered.to(device), first, layer)

    def _read(self, order: Sequence[int], layer: int) -> Generator[torch.Tensor, None, None]:
        """One layer's bytes of each page, copied from where it lies in RAM: uint8 on the CPU."""
        done = 0
        while done < len(order):
            try:
                with closing(self._tiers.stream(self._session_id, order[done:])) as stream:
                    for _, page in stream:
                        row = self._row(page, layer)
                        done += 1
                        yield row
            except PageDamaged:  # damaged, or moved by a defragmentation since it was located: the store tells
                row = self._row(memoryview(self._store.read_pages(self._session_id, [order[done]])[0]), layer)
                done += 1
                yield row

    def _row(self, page: memoryview, layer: int) -> torch.Tensor:
        return torch.frombuffer(bytearray().join(self._engine.codec.layer_bytes(page, layer)), dtype=torch.uint8)
