"""What the service counts, for /metrics and for tests that hold usage to it.

Knows names and numbers, and counts what it is told; what stores and tiers hold is in census.py.
"""

from __future__ import annotations

import platform
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from livingkv import __version__
from livingkv.watching import Watch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REFUSED = (413, 429, 503, 507)
_REQUEST_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_FIRST_TOKEN_S = (0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
StepKind = Literal["decode", "read", "background"]
WaitKind = Literal["request", "background"]


class Counters(Watch):
    """One service's counters, in a registry of their own. May be used from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.prefilled_tokens = self._counter("prefilled_tokens", "Tokens of prompts that went through the model")
        self.cached_tokens = self._counter("cached_tokens", "Tokens of prompts whose stored state was reused")
        self.generated_tokens = self._counter("generated_tokens", "Tokens that were generated")
        self.ingested_tokens = self._counter("ingested_tokens", "Tokens of texts that were ingested to their end")
        self.turns = self._counter("turns", "Turns that were committed")
        self.cancelled = self._counter("cancelled", "Requests that were given up by their client")
        self.failed = self._counter("failed", "Requests that failed by a fault of the service")
        self.requests = self._counter("requests", "Requests that were answered", "method", "route", "status")
        self.refused = self._counter("refused", "Requests that were refused: too large, too many, not ready", "status")
        self.hot_reused = self._counter("hot_windows_reused", "Sessions that went on while device memory held them")
        self.uploads_refused = self._counter(
            "uploads_refused", "Bodies that were refused because too many came at once"
        )
        self.uploads = self._gauge("uploads", "Bodies that are being received")
        self.upload_bytes = self._gauge("upload_bytes", "Bytes received of them")
        self.waiting = self._gauge("waiting", "Requests that wait for the model")
        self.running = self._gauge("running", "Requests that the model works on")
        self.background = self._gauge("background", "Jobs that nobody waits for, waiting or running")
        self.ready = self._gauge("ready", "1 while requests are taken, else 0")
        self.request_seconds = self._times(
            "request_seconds", "From a request to the end of its answer", _REQUEST_S, "route"
        )
        self.first_token = self._times(
            "first_token_seconds", "From a request to the first text of its reply", _FIRST_TOKEN_S
        )
        self.probe_seconds = self._times("probe_seconds", "Asking the index what a question may mean", _STEP_S)
        self.restore_seconds = self._times("restore_seconds", "Bringing a session back from its store", _STEP_S)
        self.step_seconds = self._times(
            "step_seconds",
            "A token for each reply, a step of a request, a step of a job",
            _STEP_S,
            "kind",
        )
        self.waited_seconds = self._times(
            "waited_seconds", "From a request, or a job, until the model takes it up", _FIRST_TOKEN_S, "kind"
        )
        self.batch_rows = self._times("batch_rows", "Replies that shared a forward pass, each with a token", _ROWS)
        build = Info("livingkv_build", "What runs", registry=self.registry)
        build.info({"version": __version__, "python": platform.python_version()})
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"livingkv_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"livingkv_{name}", text, registry=self.registry)

    def _times(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"livingkv_{name}", text, labels, buckets=buckets, registry=self.registry)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request is over. route: its template, in which there is no name that somebody chose."""
        self.requests.labels(method, route, str(status)).inc()
        self.request_seconds.labels(route).observe(seconds)
        if status in _REFUSED:
            self.refused.labels(str(status)).inc()

    def probed(self, seconds: float) -> None:
        self.probe_seconds.observe(seconds)

    def ingested(self, n_tokens: int) -> None:
        self.ingested_tokens.inc(n_tokens)

    def restored(self, seconds: float) -> None:
        self.restore_seconds.observe(seconds)

    def reused(self) -> None:
        self.hot_reused.inc()

    def stepped(self, kind: StepKind, seconds: float) -> None:
        """Model time was given out."""
        self.step_seconds.labels(kind).observe(seconds)

    def waited_for(self, kind: WaitKind, seconds: float) -> None:
        """A request or a job was taken up."""
        self.waited_seconds.labels(kind).observe(seconds)

    def exposition(self) -> bytes:
        """All of them in Prometheus' text format. Blocks for some milliseconds; waits for nobody's work."""
        return generate_latest(self.registry)
