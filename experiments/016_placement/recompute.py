"""Recalled KV of which some tokens are run through the model again, behind what is recalled before them.

Knows keys and values at consecutive positions and which of them are made anew; knows no store. Which ones: the first of
each passage, or those whose keys and values change most in the second layer, as CacheBlend picks them (Yao et al.,
arXiv 2405.16444, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from livingkv.codec import KV
from livingkv.engine import Engine
from livingkv.model_rope import Rope
from livingkv.positions import Rotation, rotate, rotation

DEVIATION_LAYERS = 2
"""Layers that all tokens are run through to see what changes: in the first nothing does, for it sees no other token."""


class Blended:
    """An AttentionState whose tokens take given slots among stored ones: token i of a pass takes slot `slots[i]`.

    keys and values [layers, heads, slots, dim], key at slot p rotated at p; changed in place. A token sees every slot
    up to its own, those made anew in the same layer among them. `deviation` [slots of the pass]: how much keys and
    values changed in the last layer that was run, relative to the mean.
    """

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor, rope: Rope) -> None:
        self.keys, self.values = keys, values
        self.deviation: Tensor | None = None
        self._slots = slots
        self._rope = rope
        self._own: Rotation | None = None

    @property
    def room(self) -> int:
        """See AttentionState: all slots in one pass."""
        return int(self._slots.shape[0])

    def begin(self, n_tokens: int) -> None:
        """See AttentionState. One pass only."""
        assert n_tokens == self.room, "every slot gets its token"
        self._own = rotation(self._slots, self._rope)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See AttentionState."""
        assert self._own is not None, "begin comes first"
        query, key = rotate(query, self._own), rotate(key, self._own)
        keys, values, slots = self.keys[layer], self.values[layer], self._slots
        self.deviation = _change(keys[:, slots], key[0]) + _change(values[:, slots], value[0])
        keys[:, slots], values[:, slots] = key[0], value[0]
        group = query.shape[1] // keys.shape[0]
        wide = keys.float().repeat_interleave(group, 0)
        score = query[0].float() @ wide.transpose(-1, -2) * (scale * self._rope.attention_factor**2)
        later = torch.arange(keys.shape[1], device=slots.device)[None] > slots[:, None]  # [tokens, slots]
        weights = score.masked_fill(later, float("-inf")).softmax(-1)
        return (weights @ values.float().repeat_interleave(group, 0))[None].to(query.dtype)

    def finish(self, n_tokens: int) -> None:
        """See AttentionState."""
        self._own = None


def _change(before: Tensor, after: Tensor) -> Tensor:
    """Squared change of each token [heads, tokens, dim], relative to the mean over tokens."""
    square = (after.float() - before.float()).square().sum((0, 2))
    return square / square.mean().clamp_min(1e-12)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Keys and values of all tokens behind the sinks, and what they cost: tokens times the share of layers run."""

    kv: KV
    tokens: float


class Recalled:
    """Passages in order behind the sinks, keys at consecutive positions, with the token ids they were read from."""

    def __init__(self, engine: Engine, sinks: KV, passages: Sequence[KV], ids: Sequence[Sequence[int]]) -> None:
        """`passages`: keys at the positions that they take here, the first behind the sinks."""
        self._engine = engine
        self._n_sinks = int(sinks.keys.shape[2])
        self._keys = torch.cat([sinks.keys, *(passage.keys for passage in passages)], 2)
        self._values = torch.cat([sinks.values, *(passage.values for passage in passages)], 2)
        self._lengths = [len(part) for part in ids]
        self._ids = torch.tensor([token for part in ids for token in part], device=engine.model.device)

    @property
    def n_tokens(self) -> int:
        """Tokens of the passages."""
        return int(self._ids.shape[0])

    def stored(self) -> Recomputed:
        """Nothing made anew."""
        return Recomputed(KV(self._keys[:, :, self._n_sinks :], self._values[:, :, self._n_sinks :]), 0.0)

    def first(self, n: int) -> Recomputed:
        """The first n tokens of each passage made anew, or all of a shorter one."""
        chosen: list[int] = []
        at = 0
        for length in self._lengths:
            chosen += range(at, at + min(n, length))
            at += length
        return self._made_anew(torch.tensor(chosen), 0.0)

    def last(self, n: int) -> Recomputed:
        """The last n tokens of each passage made anew, or all of a shorter one."""
        chosen: list[int] = []
        at = 0
        for length in self._lengths:
            chosen += range(at + max(0, length - n), at + length)
            at += length
        return self._made_anew(torch.tensor(chosen), 0.0)

    def most_changed(self, share: float) -> Recomputed:
        """This share of tokens made anew: those whose keys and values change most in the second layer."""
        everything = torch.arange(self.n_tokens)
        state = self._state(everything)
        with first_layers(self._engine, DEVIATION_LAYERS):
            self._engine.runner.read(self._ids, state)
        assert state.deviation is not None
        n = max(1, round(share * self.n_tokens))
        chosen = state.deviation.topk(n).indices.sort().values.cpu()
        looked = self.n_tokens * DEVIATION_LAYERS / self._engine.shape.n_layers
        return self._made_anew(chosen, looked)

    def all(self) -> Recomputed:
        """Every token made anew: the same tokens, each of which sees all before it."""
        return self._made_anew(torch.arange(self.n_tokens), 0.0)

    def _state(self, chosen: Tensor) -> Blended:
        slots = (chosen + self._n_sinks).to(self._keys.device)
        return Blended(self._keys.clone(), self._values.clone(), slots, self._engine.model.rope)

    def _made_anew(self, chosen: Tensor, looked: float) -> Recomputed:
        state = self._state(chosen)
        self._engine.runner.read(self._ids[chosen.to(self._ids.device)], state)
        kv = KV(state.keys[:, :, self._n_sinks :], state.values[:, :, self._n_sinks :])
        return Recomputed(kv, looked + len(chosen))


@contextmanager
def first_layers(engine: Engine, n: int) -> Iterator[None]:
    """Within it the network ends after its first n layers."""
    base = engine.model.network.base_model
    whole = base.layers
    base.layers = nn.ModuleList(whole[:n])
    try:
        yield
    finally:
        base.layers = whole
