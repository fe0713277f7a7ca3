"""What the tiers held and did over time, for the plots: samples that were taken while somebody looked.

Knows numbers and times; asks nothing itself. Nothing here is durable.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST_SAMPLES = 720
_MOST_RESTORES = 200
_LEAST_APART_S = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The tiers at one moment; counts are those since the service opened the store."""

    when_s: float
    device_bytes: int
    ram_bytes: int
    disk_bytes: int
    n_hits: int
    n_misses: int


@dataclass(slots=True)
class _Series:
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))
    restores: deque[tuple[float, float, str]] = field(default_factory=lambda: deque(maxlen=_MOST_RESTORES))


class Samples:
    """The latest samples of each tenant. Used on the event loop only."""

    def __init__(self) -> None:
        self._of: dict[str, _Series] = {}

    def add(self, tenant: str, sample: Sample) -> None:
        """Note a sample, unless one was noted a moment ago."""
        samples = self._series(tenant).samples
        if not samples or sample.when_s - samples[-1].when_s >= _LEAST_APART_S:
            samples.append(sample)

    def restored(self, tenant: str, done: Mapping[str, Any]) -> None:
        """Note a session that was brought into device memory."""
        self._series(tenant).restores.append((time.time(), float(done["ms"]), str(done["tier"])))

    def columns(self, tenant: str) -> dict[str, list[list[float]]]:
        """Columns to plot: of samples time, device, RAM, disk, hits, misses; of restores time, milliseconds."""
        series = self._series(tenant)
        rows = [(s.when_s, s.device_bytes, s.ram_bytes, s.disk_bytes, s.n_hits, s.n_misses) for s in series.samples]
        restores = [(when, ms) for when, ms, _ in series.restores]
        return {
            "samples": [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(6)],
            "restores": [list(column) for column in zip(*restores, strict=True)] if restores else [[], []],
        }

    def _series(self, tenant: str) -> _Series:
        return self._of.setdefault(tenant, _Series())
