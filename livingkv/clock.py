"""Wall time of the steps of one question. Knows a clock; knows none of the steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from livingkv.results import Timings


@dataclass(slots=True)
class Clock:
    """Wall time of the steps of one question, in milliseconds; `first_token` counts from the start."""

    started: float = field(default_factory=perf_counter)
    load: float = 0.0
    probe: float = 0.0
    fetch: float = 0.0
    first_token: float = 0.0

    def lap(self) -> float:
        """Milliseconds since the start."""
        return (perf_counter() - self.started) * 1000.0

    def timings(self) -> Timings:
        """The steps so far."""
        return Timings(self.load, self.probe, self.fetch, self.first_token, self.lap())
