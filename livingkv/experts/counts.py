"""What a streamed model did, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from livingkv.experts.source import SourceCounts


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """One layer's uses of experts: held when they were needed, or not."""

    n_hits: int = 0
    n_misses: int = 0


@dataclass(frozen=True, slots=True)
class AheadCounts:
    """Experts that were read before they were needed.

    used: the pass that they were read for needed them; wasted: it did not; given up: not wanted any more before their
    read began, so that they cost nothing. verdict: whether it pays, as far as known, from on_s and off_s, the times of
    a token with and without it when they were compared last.
    """

    n_read: int = 0
    n_used: int = 0
    n_wasted: int = 0
    n_given_up: int = 0
    read_bytes: int = 0
    used_bytes: int = 0
    wasted_bytes: int = 0
    is_on: bool = False
    verdict: str = "always off"
    on_s: float | None = None
    off_s: float | None = None


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """Sums since the model was loaded.

    n_tokens: rows of hidden states, summed over the layers. waited_s: the model's thread had nothing to do but wait for
    reads. source: what was read, also for experts that nobody waited for. An expert that was read ahead is a hit.
    """

    layers: tuple[LayerCounts, ...]
    n_passes: int
    n_tokens: int
    waited_s: float
    source: SourceCounts
    ahead: AheadCounts = AheadCounts()

    @property
    def needed_bytes(self) -> int:
        """Read, padding included, but for what was read ahead and not needed."""
        return self.source.n_bytes - self.ahead.wasted_bytes

    @property
    def n_hits(self) -> int:
        """Of all layers."""
        return sum(layer.n_hits for layer in self.layers)

    @property
    def n_misses(self) -> int:
        """Of all layers."""
        return sum(layer.n_misses for layer in self.layers)
