"""Measurements of several sides in turn, so that what else a machine does falls on all of them alike.

Knows callables that return seconds, medians and spreads; knows nothing of what is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict


class Summary(TypedDict):
    """Of n numbers."""

    n: int
    median: float
    low: float
    high: float


def summary(values: Sequence[float]) -> Summary:
    """Median, least and most of at least one number."""
    return Summary(n=len(values), median=statistics.median(values), low=min(values), high=max(values))


def in_turn(rounds: int, sides: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """What every side returned in every round. Each round begins with the next side, so that none is always first."""
    names = list(sides)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(sides[name]())
    return found


def ratios(over: Sequence[float], under: Sequence[float]) -> Summary:
    """Round by round, or of the medians where one side was measured less often."""
    if len(over) == len(under):
        return summary([one / other for one, other in zip(over, under, strict=True)])
    return summary([statistics.median(over) / statistics.median(under)])
