"""What the service counts, for /metrics and for tests that hold usage to it.

Knows names and numbers; counts nothing itself.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counters:
    """One service's counters, in a registry of their own. May be used from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.prefilled_tokens = self._counter("prefilled_tokens", "Tokens of prompts that went through the model")
        self.cached_tokens = self._counter("cached_tokens", "Tokens of prompts whose stored state was reused")
        self.generated_tokens = self._counter("generated_tokens", "Tokens that were generated")
        self.turns = self._counter("turns", "Turns that were committed")
        self.cancelled = self._counter("cancelled", "Requests that were given up by their client")
        self.failed = self._counter("failed", "Requests that failed by a fault of the service")
        self.uploads_refused = self._counter(
            "uploads_refused", "Bodies that were refused because too many came at once"
        )
        self.uploads = Gauge("livingkv_uploads", "Bodies that are being received", registry=self.registry)
        self.upload_bytes = Gauge("livingkv_upload_bytes", "Bytes received of them", registry=self.registry)
        self.waiting = Gauge("livingkv_waiting", "Requests that wait for the model", registry=self.registry)
        self.running = Gauge("livingkv_running", "Requests that the model works on", registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"livingkv_{name}", text, registry=self.registry)

    def exposition(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)
