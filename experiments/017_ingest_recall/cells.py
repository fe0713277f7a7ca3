"""A document read cell by cell, each of which attends the most similar earlier sentences besides sinks and span.

Knows token ids, spans of sentences and vectors; knows no store. Like livingkv's ingest (docs/decisions/0014) a cell of
256 tokens looks back 128 tokens, and at the sinks just before them. With recall, stored keys and values of earlier
sentences stand between the two, moved next to one another in the order of the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from livingkv.codec import KV
from livingkv.engine import Engine
from livingkv.hot_window import window_start
from livingkv.likelihood import Candidate
from livingkv.settings import LookBack

LOOK = LookBack(128, 256)


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids, the prologue among them; the tokens, texts and vectors [sentences, dim] of its sentences."""

    token_ids: list[int]
    spans: list[tuple[int, int]]
    texts: list[str]
    vectors: np.ndarray

    def similar(self, lo: int, hi: int, before: int, n: int) -> list[int]:
        """Up to n sentences that end at token `before` or earlier: those that are most like one that begins in
        [lo, hi), in the order of the document."""
        own = [index for index, span in enumerate(self.spans) if lo <= span[0] < hi]
        earlier = [index for index, span in enumerate(self.spans) if span[1] <= before]
        if not own or not earlier or not n:
            return []
        likeness = (self.vectors[own] @ self.vectors[earlier].T).max(0)
        return sorted(earlier[place] for place in np.argsort(-likeness, kind="stable")[:n])


class ReadDocument:
    """The document's keys and values [layers, heads, tokens, dim], rotated at their absolute positions."""

    def __init__(self, engine: Engine, document: Document, n_sinks: int, n_recalled: int) -> None:
        """Reads the document. `n_attended`: recalled tokens that cells attended, in all."""
        self._engine = engine
        self._document = document
        self._n_sinks = n_sinks
        shape = engine.shape
        size = (shape.n_layers, shape.n_kv_heads, len(document.token_ids), shape.head_dim)
        self._keys = torch.empty(size, dtype=shape.dtype, device=engine.model.device)
        self._values = torch.empty_like(self._keys)
        self.n_attended = 0
        for lo in range(0, len(document.token_ids), LOOK.grid_tokens):
            self._read(lo, min(lo + LOOK.grid_tokens, len(document.token_ids)), n_recalled)

    def sentence(self, index: int) -> Candidate:
        """One sentence as it was stored."""
        return self.run(*self._document.spans[index])

    def run(self, lo: int, hi: int) -> Candidate:
        """Tokens [lo, hi) as they were stored."""
        return Candidate(KV(self._keys[:, :, lo:hi], self._values[:, :, lo:hi]), lo)

    def together(self, indices: Sequence[int]) -> Candidate:
        """Sentences behind the sinks and one another, in the order of the document."""
        at, parts = self._n_sinks, []
        for index in sorted(indices):
            kv, first = self.sentence(index)
            parts.append(KV(self._engine.moved(kv.keys, at - first), kv.values))
            at += int(kv.keys.shape[2])
        return Candidate(
            KV(torch.cat([part.keys for part in parts], 2), torch.cat([part.values for part in parts], 2)),
            self._n_sinks,
        )

    def _read(self, lo: int, hi: int, n_recalled: int) -> None:
        start = window_start(lo, LOOK)
        similar = self._document.similar(lo, hi, start, n_recalled)
        before = [self.run(0, self._n_sinks), *(self.sentence(index) for index in similar)] if start else []
        n_before = sum(int(kv.keys.shape[2]) for kv, _ in before)
        self.n_attended += n_before - (self._n_sinks if start else 0)
        space = self._engine.workspace(n_before + hi - start)
        at = start - n_before
        for kv, first in before:
            space.push(KV(self._engine.moved(kv.keys, at - first), kv.values), at)
            at += int(kv.keys.shape[2])
        if start < lo:
            space.push(self.run(start, lo).kv, start)
        space.next_position = lo
        ids = torch.tensor(self._document.token_ids[lo:hi], device=self._engine.model.device)
        self._engine.runner.read(ids, space)
        new = space.view(space.end - (hi - lo), space.end)
        self._keys[:, :, lo:hi], self._values[:, :, lo:hi] = new.keys, new.values
