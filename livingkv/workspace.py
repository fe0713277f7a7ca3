"""The workspace: fixed-size device buffers that attention reads, and the state that a forward pass runs against.

Knows keys, values and positions; knows no pages, files or tokens. Slots hold keys rotated at `positions[slot]`.
Attended slots are one run [start, end): sinks, recalled passages, hot window, in that order. New tokens are
written at `end`.

With dual-chunk positions the keys stay where they are and the query is rotated once per chunk of keys: the query at
effective position Q against keys at p mod C is the query at Q + C * (p // C) against keys at p. Below the chunk
size that is the plain computation, to the last bit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from livingkv.attention import Partition, attend
from livingkv.codec import KV, PageShape
from livingkv.large_pages import private_mapping
from livingkv.model_rope import DualChunk, Rope
from livingkv.positions import Rotation, period, query_position, query_positions, rotate, rotation, temperature

_LARGE_BYTES = 1 << 23
"""Smaller buffers are had from PyTorch, which keeps them for the next."""


class AttentionState(Protocol):
    """What a forward pass runs against. The runner calls begin, then attend for each layer, then finish."""

    @property
    def room(self) -> int:
        """How many tokens the next forward pass may hold at most."""
        ...

    def begin(self, n_tokens: int) -> None:
        """Prepare for a pass over `n_tokens` tokens, at most `room`."""
        ...

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of one layer. Query [batch, heads, tokens, dim], key and value [batch, kv_heads, tokens, dim], all
        unrotated; returns [batch, heads, tokens, dim]."""
        ...

    def finish(self, n_tokens: int) -> None:
        """The pass is over; its keys and values are part of the state."""
        ...


class _Run(NamedTuple):
    """Attended slots [lo, hi) that share one query variant."""

    lo: int
    hi: int
    query: Rotation


class OneToken(NamedTuple):
    """A pass over one token: it goes to slot `end` of `space`, and sees slots [start, end], its own the last.

    runs: (hi, query position): up to slot hi, not included, keys see the query rotated by that position; the last run
    ends with the token's own slot and its position is the token's. factor: scores are multiplied with it besides the
    layer's own scale.
    """

    space: Workspace
    start: int
    end: int
    runs: tuple[tuple[int, int], ...]
    factor: float

    @property
    def position(self) -> int:
        """The token's own."""
        return self.runs[-1][1]


class Workspace:
    """Buffers of `capacity` slots, keys and values [n_layers, n_kv_heads, capacity, head_dim] in the model's dtype.

    `next_position` is where the next new token goes. Not thread-safe. Raises nothing; overfilling is a bug (assert).
    """

    def __init__(
        self, shape: PageShape, rope: Rope, capacity: int, device: torch.device, dual_chunk: DualChunk | None = None
    ) -> None:
        size = (shape.n_layers, shape.n_kv_heads, capacity, shape.head_dim)
        self.keys = torch.empty(size, dtype=shape.dtype, device=device)
        self.values = torch.empty(size, dtype=shape.dtype, device=device)
        self._with_places(torch.zeros(capacity, dtype=torch.int64))  # on the CPU: read by Python
        self.size_bytes = self.keys.nbytes + self.values.nbytes
        self.start = 0
        self.end = 0
        self.next_position = 0
        self.pass_tokens = capacity  # at most so many in one forward pass
        self._shape = shape
        self._rope = rope
        self._dual_chunk = dual_chunk
        self._runs: list[_Run] = []
        self._own: Rotation | None = None
        self._temperature = 1.0

    @property
    def capacity(self) -> int:
        """Slots in all."""
        return int(self.keys.shape[2])

    def sibling(self, capacity: int) -> Workspace:
        """An empty workspace of the same model and device."""
        return Workspace(self._shape, self._rope, capacity, self.keys.device, self._dual_chunk)

    def fill_soon(self) -> None:
        """Nothing is stored yet, and most slots will be: on a CPU take memory that is quicker to fill."""
        if self.keys.device.type == "cpu":
            self.keys, self.values = (_in_large_pages(part) for part in (self.keys, self.values))

    def lent(self, extra_tokens: int) -> Workspace:
        """A workspace in the same memory that attends the same slots, with room for `extra_tokens` behind them: as long
        as nobody else writes to these, or until it is told to `stand_alone`."""
        assert self.end + extra_tokens <= self.capacity, "there is room to lend"
        other = copy.copy(self)
        other.keys, other.values = self.view(0, self.end + extra_tokens)
        other._with_places(self.positions[: other.capacity].clone())
        other.size_bytes, other.pass_tokens = 0, other.capacity
        return other

    def stand_alone(self) -> None:
        """Have memory of its own from now on, with the same in it. Not while a pass attends."""
        attended = slice(self.start, self.end)
        for name in ("keys", "values"):
            shared = getattr(self, name)
            own = torch.empty_like(shared, memory_format=torch.contiguous_format)
            own[:, :, attended] = shared[:, :, attended]
            setattr(self, name, own)
        self.size_bytes = self.keys.nbytes + self.values.nbytes

    def _with_places(self, positions: Tensor) -> None:
        self.positions = positions
        self._places = positions.numpy()  # the same memory, of which a single number is quick to write

    @property
    def n_attended(self) -> int:
        """Slots that the next token sees, itself not counted."""
        return self.end - self.start

    @property
    def room(self) -> int:
        """Free slots, or fewer before a chunk's border; at most `pass_tokens`."""
        return self.before_border(min(self.capacity - self.end, self.pass_tokens))

    def before_border(self, n_tokens: int) -> int:
        """`n_tokens`, or the rest of the chunk if that is less: a pass never straddles a border of dual chunks."""
        if self._dual_chunk is None:
            return n_tokens
        return min(n_tokens, period(self._dual_chunk) - self.next_position % period(self._dual_chunk))

    def put(self, slot: int, kv: KV, first_position: int) -> None:
        """Write keys rotated at first_position, first_position + 1, ... with their values from `slot` on."""
        n = kv.keys.shape[2]
        self.keys[:, :, slot : slot + n] = kv.keys
        self.values[:, :, slot : slot + n] = kv.values
        self.positions[slot : slot + n] = torch.arange(first_position, first_position + n)

    def push(self, kv: KV, first_position: int) -> None:
        """`put` at the end, and attend it from now on. The next new token's position is not changed."""
        assert self.end + kv.keys.shape[2] <= self.capacity, "workspace overfilled"
        self.put(self.end, kv, first_position)
        self.end += int(kv.keys.shape[2])

    def claim(self, n_tokens: int, first_position: int) -> int:
        """As `push`, of keys and values that the caller is about to write: the first of their slots."""
        assert self.end + n_tokens <= self.capacity, "workspace overfilled"
        slot, self.end = self.end, self.end + n_tokens
        self.positions[slot : self.end] = torch.arange(first_position, first_position + n_tokens)
        return slot

    def view(self, lo: int, hi: int) -> KV:
        """Keys and values of slots [lo, hi), not copied."""
        return KV(self.keys[:, :, lo:hi], self.values[:, :, lo:hi])

    def layer_view(self, layer: int, lo: int, hi: int) -> KV:
        """Of slots [lo, hi) one layer, [1, n_kv_heads, tokens, head_dim], not copied."""
        return KV(self.keys[layer : layer + 1, :, lo:hi], self.values[layer : layer + 1, :, lo:hi])

    def blank(self, lo: int, hi: int) -> None:
        """Slots [lo, hi) become zeros: a masked key that is not a number would still spoil a sum."""
        assert hi <= self.capacity, "workspace overfilled"
        self.keys[:, :, lo:hi] = 0
        self.values[:, :, lo:hi] = 0

    def move_down(self, lo: int) -> None:
        """Move slots [lo, end) to the front; the slots before `lo` are dropped."""
        if lo == 0:
            return
        for buffer in (self.keys, self.values):
            buffer[:, :, : self.end - lo] = buffer[:, :, lo : self.end].clone()
        self.positions[: self.end - lo] = self.positions[lo : self.end].clone()
        self.start, self.end = max(self.start - lo, 0), self.end - lo

    def begin(self, n_tokens: int, *, length: int | None = None) -> None:
        """See AttentionState. length: of the sequence, as far as scores depend on it; left out, with the new tokens."""
        assert 0 < n_tokens <= self.room, "a pass must fit the workspace"
        device = self.keys.device
        first = self.next_position
        self.positions[self.end : self.end + n_tokens] = torch.arange(first, first + n_tokens)
        self._own = rotation(torch.arange(first, first + n_tokens, device=device), self._rope)
        if self._dual_chunk is None:
            self._runs = [_Run(self.start, self.end, self._own)]
        else:
            self._temperature = temperature(self._dual_chunk, first + n_tokens if length is None else length)
            self._runs = [
                _Run(lo, hi, self._variant(self._dual_chunk, first, n_tokens, chunk))
                for lo, hi, chunk in self._chunks(self._dual_chunk)
            ]

    def one_token(self) -> OneToken:
        """What `begin(1)` prepares, in numbers alone: for whoever attends and writes the slot itself, then calls
        `finish(1)`. Does nothing on the device."""
        assert self.room > 0, "a pass must fit the workspace"
        first, rules = self.next_position, self._dual_chunk
        self._places[self.end] = first
        factor = self._rope.attention_factor**2
        if rules is None:
            return OneToken(self, self.start, self.end, ((self.end + 1, first),), factor)
        size = period(rules)
        runs = [(hi, query_position(rules, first, chunk) + chunk * size) for _, hi, chunk in self._chunks(rules)]
        if runs and runs[-1] == (self.end, first):
            runs.pop()
        runs.append((self.end + 1, first))
        return OneToken(self, self.start, self.end, tuple(runs), factor * temperature(rules, first + 1))

    def _chunks(self, rules: DualChunk) -> Iterator[tuple[int, int, int]]:
        """Attended slots [lo, hi) whose keys are of one chunk, and which."""
        every = self._places[self.start : self.end] // period(rules)
        edges = [0, *(np.flatnonzero(every[1:] != every[:-1]) + 1).tolist(), len(every)]
        for lo, hi in pairwise(edges):
            if lo < hi:
                yield self.start + lo, self.start + hi, int(every[lo])

    def _variant(self, rules: DualChunk, first: int, n_tokens: int, key_chunk: int) -> Rotation:
        assert self._own is not None
        if key_chunk == first // period(rules):
            return self._own
        positions = query_positions(rules, first, n_tokens, key_chunk, self.keys.device)
        return rotation(positions + key_chunk * period(rules), self._rope)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See AttentionState. Writes the new keys, rotated, and values behind the attended slots."""
        return attend(self.partitions(layer, query, key, value), self.scaled(scale))

    def scaled(self, scale: float) -> float:
        """`scale` with the factors that the model's positions put on scores; valid between begin and finish."""
        return scale * self._rope.attention_factor**2 * self._temperature

    def write(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Put one layer's new keys, rotated, and values behind the attended slots; the query, rotated."""
        assert self._own is not None, "begin comes first"
        n = query.shape[2]
        self.keys[layer, :, self.end : self.end + n] = rotate(key, self._own)[0]
        self.values[layer, :, self.end : self.end + n] = value[0]
        return rotate(query, self._own)

    def partitions(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> list[Partition]:
        """What `attend` merges, for a caller who has more to merge with it. Writes as `attend` does."""
        own, n = self.write(layer, query, key, value), query.shape[2]
        assert self._own is not None, "begin comes first"
        runs = self._runs
        partitions = []
        joins = bool(runs) and runs[-1].query is self._own and runs[-1].hi == self.end
        if n == 1 and joins:
            runs = [*runs[:-1], _Run(runs[-1].lo, self.end + 1, self._own)]  # one token: its own key needs no mask
        else:
            new = self.layer_view(layer, runs[-1].lo if joins else self.end, self.end + n)
            runs = runs[:-1] if joins else runs
            partitions.append(Partition(own, new.keys, new.values, causal=True))
        for run in runs:
            turned = own if run.query is self._own else rotate(query, run.query)
            partitions.append(Partition(turned, *self.layer_view(layer, run.lo, run.hi)))
        return partitions

    def outside_runs(self, n_tokens: int) -> list[tuple[int, int, Rotation]]:
        """(lo, hi, query variant) of keys that stand elsewhere at positions 0..n_tokens-1, all before the workspace's.
        Valid between begin and finish."""
        assert self._own is not None, "begin comes first"
        if self._dual_chunk is None:
            return [(0, n_tokens, self._own)]
        rules, size = self._dual_chunk, period(self._dual_chunk)
        first, n_new = self.next_position, int(self._own.cos.shape[0])
        return [
            (lo, min(lo + size, n_tokens), self._variant(rules, first, n_new, lo // size))
            for lo in range(0, n_tokens, size)
        ]

    def finish(self, n_tokens: int) -> None:
        """See AttentionState."""
        self.end += n_tokens
        self.next_position += n_tokens
        self._runs, self._own = [], None


def _in_large_pages(like: Tensor) -> Tensor:
    """An uninitialised tensor on the CPU of the same size and dtype."""
    if like.nbytes < _LARGE_BYTES:
        return torch.empty_like(like)
    mapping = private_mapping(like.nbytes)  # lives as long as the tensor
    return torch.frombuffer(mapping, dtype=like.dtype).view(like.shape)
