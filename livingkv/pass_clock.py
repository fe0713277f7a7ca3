"""How fast passes read tokens, measured on the device that runs them.

Knows passes and their tokens; knows no model. A GPU is not waited for: events stand before and after each pass, and
are read once they are past.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import NamedTuple, Protocol

import torch


class Moment(Protocol):
    """A point in a device's work, now or to come."""

    def is_past(self) -> bool:
        """Whether the device has got there. Does not wait."""

    def wait(self) -> None:
        """Return when it has."""

    def seconds_after(self, earlier: Moment) -> float:
        """From `earlier`, of the same device, to this; both are past."""


class HostMoment:
    """A Moment of a CPU, which computes at once: past when it is made."""

    def __init__(self) -> None:
        self._at = perf_counter()

    def is_past(self) -> bool:
        """See Moment."""
        return True

    def wait(self) -> None:
        """See Moment."""

    def seconds_after(self, earlier: Moment) -> float:
        """See Moment."""
        assert isinstance(earlier, HostMoment)
        return self._at - earlier._at


class CudaMoment:
    """A Moment of a CUDA device's current stream."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def is_past(self) -> bool:
        """See Moment."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """See Moment."""
        self._event.synchronize()

    def seconds_after(self, earlier: Moment) -> float:
        """See Moment."""
        assert isinstance(earlier, CudaMoment)
        return float(earlier._event.elapsed_time(self._event)) / 1000.0


class _Pass(NamedTuple):
    n_tokens: int
    begun: Moment
    ended: Moment


class PassClock:
    """Adds up tokens and seconds of passes that are over."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._running: deque[_Pass] = deque()
        self._n_tokens = 0
        self._seconds = 0.0

    def now(self) -> Moment:
        """The point in the device's work where what was asked of it so far ends."""
        return CudaMoment(self._device) if self._device.type == "cuda" else HostMoment()

    def add(self, n_tokens: int, begun: Moment) -> None:
        """A pass over `n_tokens` that began at `begun` was asked for."""
        self._running.append(_Pass(n_tokens, begun, self.now()))
        self._count()

    @property
    def tokens_per_s(self) -> float | None:
        """Over all passes that are over, None before the first was asked for. Waits for the first, and only for it."""
        if not self._n_tokens and self._running:
            self._running[0].ended.wait()
        self._count()
        return self._n_tokens / self._seconds if self._n_tokens else None

    def _count(self) -> None:
        while self._running and self._running[0].ended.is_past():
            done = self._running.popleft()
            self._n_tokens += done.n_tokens
            self._seconds += done.ended.seconds_after(done.begun)
