"""What the kept states of conversations did, for /metrics: taken, restored, evicted, and how full they are.

Knows counts by tenant; nothing is counted here, and a scrape waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from livingkv.snapshots import SnapshotCounts

_TAKEN = {
    "taken": ("n_taken", "States of conversations that were kept"),
    "missed": ("n_missed", "Prompts that no kept state begins"),
    "saved_tokens": ("n_saved_tokens", "Tokens of prompts that were not read again because a state was restored"),
    "refused": ("n_refused", "States that were damaged or of something else, and are not used"),
    "unwritten": ("n_unwritten", "States that the disk did not take"),
}
_BY_TIER = {
    "restored": (("n_found_in_ram", "n_found_on_disk"), "Prompts that went on from a kept state"),
    "evicted": (("n_evicted_from_ram", "n_evicted_from_disk"), "States that made room for others"),
}


class StatesCensus(Collector):
    """One service's. `told` answers the counts of each tenant as they were last."""

    def __init__(self, told: Callable[[], Mapping[str, SnapshotCounts]]) -> None:
        self._told = told

    def collect(self) -> Iterator[Metric]:
        """What there is now, as Prometheus' families."""
        told = self._told()
        for name, (field, text) in _TAKEN.items():
            counter = CounterMetricFamily(f"livingkv_states_{name}", text, labels=["tenant"])
            for tenant, counts in told.items():
                counter.add_metric([tenant], getattr(counts, field))
            yield counter
        for name, (fields, text) in _BY_TIER.items():
            counter = CounterMetricFamily(f"livingkv_states_{name}", text, labels=["tenant", "tier"])
            for tenant, counts in told.items():
                for tier, field in zip(("ram", "disk"), fields, strict=True):
                    counter.add_metric([tenant, tier], getattr(counts, field))
            yield counter
        size = GaugeMetricFamily("livingkv_states_bytes", "What kept states take", labels=["tenant", "tier"])
        for tenant, counts in told.items():
            size.add_metric([tenant, "ram"], counts.ram_bytes)
            size.add_metric([tenant, "disk"], counts.disk_bytes)
        yield size

    def describe(self) -> Iterator[Metric]:
        """The same families, without a value."""
        yield from StatesCensus(dict).collect()
