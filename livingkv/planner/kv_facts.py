"""The KV of all layers as the laws want it: elements of layers that keep all, of those with a window, states.

Knows what layers keep; knows no network and no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from livingkv.planner.kv_layers import LayerKeeps
from livingkv.settings import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class KvFacts:
    """values: of symbols. why_not: for those that are unknown. page_bits: see ModelFacts."""

    values: Mapping[str, float | None]
    why_not: Mapping[str, str]
    page_bits: float | None


def kv_facts(layers: Iterable[LayerKeeps]) -> KvFacts:
    """Of all layers together. More than two sizes of windows are unknown: the laws have two."""
    kept = list(layers)
    growing = sum(layer.elements for layer in kept if layer.window is None)
    windows: dict[int, int] = {}
    for layer in kept:
        if layer.window is not None and layer.elements:
            windows[layer.window] = windows.get(layer.window, 0) + layer.elements
    bounded, sizes = sum(windows.values()), sorted(windows)
    states = [layer.state_bytes for layer in kept]
    why_not = {}
    values: dict[str, float | None] = {"kv_elements": growing, "bounded_elements": bounded}
    values |= {"sliding_window": sizes[0] if sizes else 0, "wider_elements": 0, "wider_window": 0}
    if len(sizes) == 2:
        narrow, wide = sizes
        values |= {"bounded_elements": windows[narrow], "wider_elements": windows[wide], "wider_window": wide}
    elif len(sizes) > 2:
        values["sliding_window"] = None
        why_not["sliding_window"] = f"layers have windows of {', '.join(map(str, sizes))} tokens"
    values["state_bytes"] = None if None in states else sum(state or 0 for state in states)
    if None in states:
        why_not["state_bytes"] = "some layers keep a state of a kind that is not understood"
    return KvFacts(values, why_not, _page_bits(kept, growing, bounded))


def _page_bits(kept: list[LayerKeeps], growing: int, bounded: int) -> float | None:
    shapes = {layer.shape for layer in kept}
    if bounded or not growing or len(shapes) != 1 or any(layer.state_bytes != 0 for layer in kept):
        return None
    (shape,) = shapes
    return None if shape is None else page_bits(len(kept), *shape)


def page_bits(n_layers: int, n_kv_heads: int, head_dim: int) -> float:
    """Bits of an element in livingkv's 8-bit pages: codes, scales of keys and values, header."""
    import torch

    from livingkv.codec import PageShape, page_bytes

    n_bytes = page_bytes("int8", PageShape(n_layers, n_kv_heads, head_dim, torch.bfloat16))
    return 8 * n_bytes / (2 * n_layers * n_kv_heads * head_dim * PAGE_TOKENS)
