"""What a load did: every status, every turn that was answered, everything that must not happen.

Knows counts; knows no HTTP client.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from experiments.latency import percentile

_MAY_WAIT = (429, 503)
_MOST_FAULTS = 20


@dataclass(slots=True)
class Tally:
    """Of all clients together. faults: what must not happen, the first of each kind told."""

    statuses: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    took_ms: dict[str, list[float]] = field(default_factory=dict)
    n_faults: int = 0
    faults: list[str] = field(default_factory=list)
    n_turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    without_cache: list[str] = field(default_factory=list)

    def answered(self, what: str, status: int, retry_after: str | None, took_ms: float, text: str = "") -> bool:
        """Note an answer; True for one that succeeded. Anything but success, or to be asked to wait, is a fault."""
        self.statuses[f"{what} {status}"] += 1
        if status < 300:
            self.took_ms.setdefault(what, []).append(took_ms)
            return True
        if status not in _MAY_WAIT:
            self.fault(f"{what} was answered {status}: {text[:200]}")
        elif retry_after is None or not retry_after.isdecimal():
            self.fault(f"{what} was answered {status} without Retry-After")
        return False

    def gave_up(self, what: str) -> None:
        """The client went away in the middle."""
        self.cut[what] += 1

    def turn(self, usage: dict[str, Any], session: str, n_before: int, *, goes_another_way: bool) -> None:
        """A turn of a conversation that was answered; so many messages of its session were acknowledged before.

        goes_another_way: the client did not hear what came of the turn before. Where that was stored all the same, only
        whole pages of what both have in common are reused, of a short conversation none.
        """
        cached = int(usage["prompt_tokens_details"]["cached_tokens"])
        self.n_turns += 1
        self.prompt_tokens += int(usage["prompt_tokens"])
        self.cached_tokens += cached
        if n_before and not cached and not goes_another_way:
            self.without_cache.append(f"{session}: {n_before} messages before")

    def fault(self, told: str) -> None:
        """Something that must not happen."""
        self.n_faults += 1
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(told)

    @property
    def n_answers(self) -> int:
        """Requests that were answered, however."""
        return self.statuses.total()

    def to_json(self) -> dict[str, Any]:
        """All of it, times as percentiles."""
        return {
            "n_answers": self.n_answers,
            "statuses": dict(sorted(self.statuses.items())),
            "given_up": dict(sorted(self.cut.items())),
            "n_faults": self.n_faults,
            "faults": self.faults,
            "turns": {
                "n": self.n_turns,
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "later_turns_without_cached_tokens": self.without_cache,
            },
            "took_ms": {
                what: {"n": len(ms), **{f"p{100 * share:.0f}": percentile(ms, share) for share in (0.5, 0.95, 0.99)}}
                for what, ms in sorted(self.took_ms.items())
            },
        }
