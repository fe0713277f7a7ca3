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
class StreamCounts:
    """Sums since the model was loaded.

    n_tokens: rows of hidden states, summed over the layers. waited_s: the model's thread had nothing to do but wait for
    reads. source: what was read, also for experts that nobody waited for.
    """

    layers: tuple[LayerCounts, ...]
    n_passes: int
    n_tokens: int
    waited_s: float
    source: SourceCounts

    @property
    def n_hits(self) -> int:
        """Of all layers."""
        return sum(layer.n_hits for layer in self.layers)

    @property
    def n_misses(self) -> int:
        """Of all layers."""
        return sum(layer.n_misses for layer in self.layers)
