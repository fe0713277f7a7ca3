"""Times of many calls as one row of a result. Knows medians and percentiles; knows nothing of what was timed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share, 0..1, of all does not exceed. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values have no percentile; time something first")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def timed_ms(call: Callable[[int], object], n: int) -> list[float]:
    """Milliseconds that each of n calls took; a call gets its number."""
    took = []
    for number in range(n):
        started = perf_counter()
        call(number)
        took.append(1000 * (perf_counter() - started))
    return took


def latency(milliseconds: Sequence[float]) -> dict[str, Any]:
    """n, median, 95th and 99th percentile, longest, and every single value, rounded to microseconds."""
    return {
        "n": len(milliseconds),
        "p50_ms": statistics.median(milliseconds),
        "p95_ms": percentile(milliseconds, 0.95),
        "p99_ms": percentile(milliseconds, 0.99),
        "max_ms": max(milliseconds),
        "ms": [round(value, 3) for value in milliseconds],
    }
