"""Which expert makes room for another, and which is not worth keeping.

Knows keys and counts of uses; refuses to know rows and bytes. The order of `held` is that of the last use, the oldest
first; `is_free` says which of them may go now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from livingkv.experts.keys import ExpertKey

IsFree = Callable[[ExpertKey], bool]


class Eviction(Protocol):
    """The rule of one arena."""

    def used(self, key: ExpertKey) -> None:
        """An expert is needed, whether it is held or not."""

    def victim(self, key: ExpertKey, held: Iterable[ExpertKey], is_free: IsFree, n_in_pass: int) -> ExpertKey | None:
        """What goes so that `key` can stay. None: `key` is read for this once. n_in_pass: experts of this layer now."""


class LeastRecent:
    """The expert that was used the longest ago goes.

    Where so many are needed in a layer that a pass over all of them would empty the arena, nothing goes: a long prompt
    leaves what the tokens before and after it need.
    """

    def __init__(self, n_layers: int, n_kept: int) -> None:
        self._most_in_pass = n_kept // n_layers

    def used(self, key: ExpertKey) -> None:
        """See Eviction."""

    def victim(self, key: ExpertKey, held: Iterable[ExpertKey], is_free: IsFree, n_in_pass: int) -> ExpertKey | None:
        """See Eviction."""
        if n_in_pass > self._most_in_pass:
            return None
        return next((other for other in held if is_free(other)), None)


class StableSubset:
    """For an arena smaller than what one token needs, where the least recent would always go just before its use.

    What is held stays. Only one that is needed twice as often takes the place of the one that is needed the least.
    """

    def __init__(self) -> None:
        self._uses: Counter[ExpertKey] = Counter()

    def used(self, key: ExpertKey) -> None:
        """See Eviction."""
        self._uses[key] += 1

    def victim(self, key: ExpertKey, held: Iterable[ExpertKey], is_free: IsFree, n_in_pass: int) -> ExpertKey | None:
        """See Eviction."""
        coldest = min((other for other in held if is_free(other)), key=self._uses.__getitem__, default=None)
        if coldest is None or self._uses[key] < 2 * self._uses[coldest] + 2:
            return None
        return coldest
