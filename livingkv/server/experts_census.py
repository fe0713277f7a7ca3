"""What a streamed model read and waited for, for /metrics.

Knows a streamed model's counts; nothing is counted here, and a scrape waits for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from livingkv.errors import ExpertReadError
from livingkv.experts.loading import StreamedModel
from livingkv.experts.token_speed import drive_speeds, eta

LOG = logging.getLogger("livingkv.server")
DRIVE_READ_BYTES = 1 << 20
DRIVE_DEPTH = 8
DRIVE_SECONDS = 0.3
"""How the drive is measured when a service starts: reads as long and as many at once as streaming makes them."""


class Streaming(NamedTuple):
    """A streamed model, and what its drive brings past the page cache; None where that could not be measured."""

    model: StreamedModel
    drive_bytes_per_s: float | None


def streaming_of(model: StreamedModel) -> Streaming:
    """The model with its drive, which is measured now; that takes about `DRIVE_SECONDS`."""
    sizes, depths = (DRIVE_READ_BYTES,), (DRIVE_DEPTH,)
    try:
        (speed,) = drive_speeds(model.index.checkpoint, sizes=sizes, depths=depths, seconds_each=DRIVE_SECONDS)
    except ExpertReadError as error:
        LOG.warning("the drive of the experts is not measured: %s", error)
        return Streaming(model, None)
    return Streaming(model, speed.bytes_per_s)


class ExpertsCensus(Collector):
    """One service's. `streaming` answers None while no model streams its experts."""

    def __init__(self, streaming: Callable[[], Streaming | None]) -> None:
        self._streaming = streaming

    def collect(self) -> Iterator[Metric]:
        """What there is now, as Prometheus' families."""
        now = self._streaming()
        values = {} if now is None else _values(now)
        for name, text in _COUNTERS.items():
            yield _filled(CounterMetricFamily(f"livingkv_experts_{name}", text), values.get(name))
        for name, text in _GAUGES.items():
            yield _filled(GaugeMetricFamily(f"livingkv_experts_{name}", text), values.get(name))

    def describe(self) -> Iterator[Metric]:
        """The same families, without a value."""
        yield from ExpertsCensus(lambda: None).collect()


_COUNTERS = {
    "read_bytes": "Bytes of experts that were read from the model's files, padding included",
    "wasted_bytes": "Of these, read ahead and not needed",
    "hits": "Uses of experts that RAM held",
    "misses": "Uses of experts that RAM did not hold",
    "waited_seconds": "Seconds in which the model waited for reads alone",
    "pass_seconds": "Seconds of forward passes",
    "pass_tokens": "Tokens in forward passes",
    "ahead_used": "Experts that were read ahead and then needed",
    "ahead_wasted": "Experts that were read ahead and not needed",
}
_GAUGES = {
    "ahead_on": "1 while experts are read ahead, 0 while that does not pay",
    "ram_bytes": "RAM for experts",
    "drive_bytes_per_second": "What the drive brought past the page cache at the start, reads of 1 MiB, 8 at once",
    "eta": "Share of the passes' time that the drive alone would need for what was needed: 1 is its limit",
}


def _values(now: Streaming) -> dict[str, float | None]:
    counts, clock = now.model.counts(), now.model.clock
    n_bytes, seconds = counts.needed_bytes, clock.seconds
    return {
        "read_bytes": counts.source.n_bytes,
        "wasted_bytes": counts.ahead.wasted_bytes,
        "hits": counts.n_hits,
        "misses": counts.n_misses,
        "waited_seconds": counts.waited_s,
        "pass_seconds": seconds,
        "pass_tokens": clock.n_tokens,
        "ahead_used": counts.ahead.n_used,
        "ahead_wasted": counts.ahead.n_wasted,
        "ahead_on": float(counts.ahead.is_on),
        "ram_bytes": now.model.arena.size_bytes,
        "drive_bytes_per_second": now.drive_bytes_per_s,
        "eta": eta(n_bytes, now.drive_bytes_per_s, seconds),
    }


def _filled(family: Metric, value: float | None) -> Metric:
    if value is not None:
        family.add_metric([], value)  # type: ignore[attr-defined]
    return family
