"""A session attended whole whatever its length: what is newest in a workspace, the rest in blocks that come and go.

Knows partitions and positions; refuses to know where blocks come from. Every layer of every forward pass sees every
block once, and merges it by log-sum-exp before the next is asked for: device memory holds one block of one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import chain

from torch import Tensor

from livingkv.attention import Partition, attend_in_turn
from livingkv.codec import KV
from livingkv.positions import Rotation, rotate
from livingkv.workspace import Workspace

ColdBlocks = Callable[[int], Generator[tuple[int, KV], None, None]]
"""Blocks of one layer of tokens 0, 1, 2, ...: the first token of each and its KV [n_kv_heads, tokens, head_dim], keys
at their absolute positions, in any order."""


class StreamedSpace:
    """An AttentionState over `n_cold` tokens that are streamed, and the workspace `near`, which holds what follows them
    and takes what is read. Not thread-safe; an error of the blocks leaves a pass unfinished, and the state unusable."""

    def __init__(self, near: Workspace, blocks: ColdBlocks, n_cold: int) -> None:
        self.near = near
        self._blocks = blocks
        self._n_cold = n_cold
        self._runs: list[tuple[int, int, Rotation]] = []

    @property
    def n_attended(self) -> int:
        """Tokens that the next one sees, itself not counted."""
        return self._n_cold + self.near.n_attended

    @property
    def room(self) -> int:
        """See AttentionState."""
        return self.near.room

    def begin(self, n_tokens: int) -> None:
        """See AttentionState."""
        self.near.begin(n_tokens)
        self._runs = self.near.outside_runs(self._n_cold)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See AttentionState. Raises what the blocks raise."""
        near = self.near.partitions(layer, query, key, value)
        with closing(self._blocks(layer)) as blocks:
            return attend_in_turn(chain(near, self._cold(query, blocks)), self.near.scaled(scale))

    def _cold(self, query: Tensor, blocks: Iterator[tuple[int, KV]]) -> Iterator[Partition]:
        turned = [(lo, hi, rotate(query, variant)) for lo, hi, variant in self._runs]
        for first, kv in blocks:
            last = first + kv.keys.shape[1]
            for lo, hi, queries in turned:
                if lo < last and hi > first:
                    cut = slice(max(lo - first, 0), min(hi, last) - first)
                    yield Partition(queries, kv.keys[None, :, cut], kv.values[None, :, cut])

    def finish(self, n_tokens: int) -> None:
        """See AttentionState."""
        self.near.finish(n_tokens)
        self._runs = []
