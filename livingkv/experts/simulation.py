"""What an arena of so many rows would have held of a recorded run: hits by rule and size, against the optimum.

The rules are those of the arena itself (`eviction.py`); for the least recent one, the hits are those that an arena has
which reads nothing ahead. Knows traces and rules; refuses to know rows and time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from livingkv.experts.arena import n_kept_of
from livingkv.experts.eviction import Eviction, LeastRecent, StableSubset
from livingkv.experts.keys import ExpertKey
from livingkv.experts.route_trace import Trace


@dataclass(frozen=True, slots=True)
class Simulated:
    """One rule in an arena of `n_rows`. read_bytes: of all misses, without padding."""

    rule: str
    n_rows: int
    n_hits: int
    n_misses: int
    read_bytes: int

    @property
    def hit_share(self) -> float:
        """Hits by uses; 0 without uses."""
        return self.n_hits / max(1, self.n_hits + self.n_misses)


class Cache(Protocol):
    """A simulated arena."""

    def run(self, needed: Sequence[ExpertKey]) -> int:
        """One pass that needs those experts, each once, in ascending order: how many of them were held before it."""


class RuleCache:
    """A Cache that does as `RowArena` does with a rule. Where a row is free only after its use, it is free at once."""

    def __init__(self, n_kept: int, rule: Eviction) -> None:
        self._n_kept, self._rule = n_kept, rule
        self._held: dict[ExpertKey, None] = {}

    def run(self, needed: Sequence[ExpertKey]) -> int:
        """See Cache."""
        missing, protected = [], set()
        for key in needed:
            self._rule.used(key)
            if key in self._held:
                del self._held[key]
                self._held[key] = None
                protected.add(key)
            else:
                missing.append(key)
        for key in missing:
            if len(self._held) >= self._n_kept:
                victim = self._rule.victim(key, self._held, lambda other: other not in protected, len(needed))
                if victim is None:
                    continue
                del self._held[victim]
            self._held[key] = None
            protected.add(key)
        return len(needed) - len(missing)


class OptimalCache:
    """A Cache that knows what comes: after a pass it keeps what is needed the soonest. No rule has more hits.

    L. A. Belady, A study of replacement algorithms for a virtual-storage computer, 1966; here nothing has to be kept.
    """

    def __init__(self, n_kept: int, passes: Sequence[Sequence[ExpertKey]]) -> None:
        self._n_kept = n_kept
        self._next_of: list[list[int]] = [[] for _ in passes]  # when each expert of a pass is needed next
        coming: dict[ExpertKey, int] = {}
        for number in range(len(passes) - 1, -1, -1):
            self._next_of[number] = [coming.get(key, len(passes)) for key in passes[number]]
            coming.update(dict.fromkeys(passes[number], number))
        self._number = 0
        self._held: dict[ExpertKey, int] = {}
        self._farthest: list[tuple[int, ExpertKey]] = []

    def run(self, needed: Sequence[ExpertKey]) -> int:
        """See Cache. The passes must be those that the object was made of, in their order."""
        n_hits = sum(key in self._held for key in needed)
        for key, following in zip(needed, self._next_of[self._number], strict=True):
            self._held[key] = following
            heapq.heappush(self._farthest, (-following, key))
        self._number += 1
        while len(self._held) > self._n_kept:
            following, key = heapq.heappop(self._farthest)
            if self._held.get(key) == -following:
                del self._held[key]
        return n_hits


def passes_of(trace: Trace) -> list[list[ExpertKey]]:
    """What each pass needed, in ascending order."""
    return [[ExpertKey(one.layer, expert) for expert in one.experts] for one in trace.passes]


def simulate(trace: Trace, sizes: Iterable[int], expert_bytes: Sequence[int]) -> list[Simulated]:
    """Every rule for every number of rows. expert_bytes: of each layer."""
    passes, n_needed = passes_of(trace), sum(trace.n_experts)
    found = []
    for n_rows in sizes:
        n_kept = n_kept_of(n_rows, n_needed)
        caches: dict[str, Cache] = {
            "least recent": RuleCache(n_kept, LeastRecent(len(trace.n_experts), n_kept)),
            "stable subset": RuleCache(n_kept, StableSubset()),
            "optimum": OptimalCache(n_rows, passes),
        }
        found += [_simulated(rule, n_rows, cache, passes, expert_bytes) for rule, cache in caches.items()]
    return found


def _simulated(
    rule: str, n_rows: int, cache: Cache, passes: Sequence[Sequence[ExpertKey]], expert_bytes: Sequence[int]
) -> Simulated:
    n_hits = n_misses = read_bytes = 0
    for needed in passes:
        hits = cache.run(needed)
        n_hits += hits
        n_misses += len(needed) - hits
        read_bytes += (len(needed) - hits) * (expert_bytes[needed[0].layer] if needed else 0)
    return Simulated(rule, n_rows, n_hits, n_misses, read_bytes)
