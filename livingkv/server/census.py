"""What the open tenants hold, for /metrics: sessions, sentences, bytes by part and by tier, and what the tiers did.

Knows tenants and numbers. Counting happens on the inference thread, between two steps of others, when somebody asked
for it; readers get what was counted last and wait for nothing.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from livingkv.errors import LivingKVError
from livingkv.results import TierStats
from livingkv.server.tenants import Tenant
from livingkv.store import StoreStats

LOG = logging.getLogger("livingkv.server")
LEAST_S = 2.0
"""Two countings are at least so far apart."""
_SHARE = 50
"""And so many times as long as counting took: it costs at most 2 % of the thread's time."""
_STEP_S = 0.02
"""After so long, others get a step; one tenant is counted at a time."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one tenant holds. stored: None while it has no store; tiers: None before a page was read."""

    stored: StoreStats | None
    tiers: TierStats | None
    device_bytes: int
    index_sentences: int


class Census(Collector):
    """One service's. `ask` and `collect` from any thread, `step` on the inference thread."""

    def __init__(self, folder: Path, opened: Callable[[], Sequence[Tenant]]) -> None:
        self._folder = folder
        self._opened = opened
        self._asked = threading.Event()
        self._counted = threading.Event()
        self._due = 0.0
        self._left: list[Tenant] | None = None
        self._spent = 0.0
        self._made: dict[str, Holding] = {}
        self._latest: Mapping[str, Holding] = {}
        self._disk_free: int | None = None

    def ask(self) -> bool:
        """Have what is held counted, where the last time is long enough ago. True if the thread is to be woken."""
        if self._asked.is_set() or time.monotonic() < self._due:
            return False
        self._counted.clear()
        self._asked.set()
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until what was asked for is counted; not for long, since a step of others may be long."""
        if self._asked.is_set():
            self._counted.wait(timeout_s)

    def step(self) -> bool:
        """Count some of what was asked for; True if there is more."""
        if not self._asked.is_set():
            return False
        started = time.monotonic()
        if self._left is None:
            self._left, self._made, self._spent = list(self._opened()), {}, 0.0
        while self._left:
            self._count(self._left.pop())
            if time.monotonic() - started > _STEP_S:
                break
        self._spent += time.monotonic() - started
        if self._left:
            return True
        self._disk_free = _free_bytes(self._folder)
        self._latest, self._left = self._made, None
        self._due = time.monotonic() + max(LEAST_S, _SHARE * self._spent)
        self._asked.clear()
        self._counted.set()
        return False

    def _count(self, tenant: Tenant) -> None:
        try:
            self._made[tenant.name] = _holding(tenant)
        except LivingKVError as error:  # a damaged store: what was counted before stands, and `check` says more
            LOG.warning("what a tenant holds could not be counted: %s", type(error).__name__)
            if tenant.name in self._latest:
                self._made[tenant.name] = self._latest[tenant.name]

    def collect(self) -> Iterator[Metric]:
        """What was counted last, as Prometheus' families."""
        held = self._latest
        disk = GaugeMetricFamily("livingkv_disk_free_bytes", "Free on the file system of the stores")
        if self._disk_free is not None:
            disk.add_metric([], self._disk_free)
        yield disk
        yield from _gauges(held)
        yield from _tiers(held)

    def describe(self) -> Iterator[Metric]:
        """The same families, without a value."""
        yield from Census(self._folder, tuple).collect()


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:  # a file system that is gone is told of by those who write to it
        return None


def _holding(tenant: Tenant) -> Holding:
    home = tenant.home
    stored = home.store().stats() if home.has_store else None
    return Holding(stored, home.tier_totals(), home.device_bytes, home.index.n_sentences)


def _gauges(held: Mapping[str, Holding]) -> Iterator[Metric]:
    tenants = GaugeMetricFamily("livingkv_tenants", "Tenants whose stores are open")
    tenants.add_metric([], len(held))
    sessions = GaugeMetricFamily("livingkv_sessions", "Sessions that are stored", labels=["tenant"])
    tokens = GaugeMetricFamily("livingkv_stored_tokens", "Tokens that are stored", labels=["tenant"])
    index = GaugeMetricFamily("livingkv_index_sentences", "Sentences that the index finds", labels=["tenant"])
    store = GaugeMetricFamily("livingkv_store_bytes", "Bytes of a store, by part", labels=["tenant", "part"])
    held_bytes = GaugeMetricFamily("livingkv_store_held_bytes", "What the file system holds of it", labels=["tenant"])
    budget = GaugeMetricFamily("livingkv_disk_budget_bytes", "What a store may hold, if limited", labels=["tenant"])
    for name, holding in held.items():
        index.add_metric([name], holding.index_sentences)
        if (stored := holding.stored) is None:
            continue
        sessions.add_metric([name], stored.n_sessions)
        tokens.add_metric([name], stored.n_tokens)
        held_bytes.add_metric([name], stored.held_bytes)
        for part, size in stored.bytes_by_part.items():
            store.add_metric([name, part], size)
        if stored.disk_budget_bytes is not None:
            budget.add_metric([name], stored.disk_budget_bytes)
    yield from (tenants, sessions, tokens, index, store, held_bytes, budget)


def _tiers(held: Mapping[str, Holding]) -> Iterator[Metric]:
    size = GaugeMetricFamily(
        "livingkv_tier_bytes", "KV that a tier holds: device, ram, disk", labels=["tenant", "tier"]
    )
    told = {
        "n_hits": ("livingkv_tier_hits", "Pages that were asked for and lay in RAM"),
        "n_misses": ("livingkv_tier_misses", "Pages that were asked for and did not lie in RAM"),
        "n_evicted": ("livingkv_tier_evictions", "Pages that RAM gave up for others"),
        "disk_pages": ("livingkv_tier_disk_pages", "Pages that were read from disk"),
        "disk_bytes": ("livingkv_tier_disk_bytes", "Bytes that were read from disk"),
        "disk_seconds": ("livingkv_tier_disk_seconds", "Seconds of reading from disk, side by side added up"),
    }
    counters = {field: CounterMetricFamily(*names, labels=["tenant"]) for field, names in told.items()}
    for name, holding in held.items():
        size.add_metric([name, "device"], holding.device_bytes)
        size.add_metric([name, "ram"], 0 if holding.tiers is None else holding.tiers.ram_bytes)
        size.add_metric([name, "disk"], 0 if holding.stored is None else holding.stored.bytes_by_part["pages"])
        for field, counter in counters.items():
            counter.add_metric([name], 0 if holding.tiers is None else getattr(holding.tiers, field))
    yield size
    yield from counters.values()
