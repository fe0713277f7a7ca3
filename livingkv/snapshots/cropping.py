"""Taking tokens off the end of a cache, where that is exact.

transformers' own word for it is not enough: deepseek_v4's layers say that they can be cropped, and keep their
compressor's state when they are. So kinds of layers are listed here that were read and tried. Knows caches' layers;
refuses to know tokens.
"""

from __future__ import annotations

from typing import Any

from livingkv.errors import UnsupportedModel
from livingkv.snapshots.state import class_name

EXACT = frozenset({"transformers.cache_utils.DynamicLayer"})
"""Layers that hold a key and a value for each token and nothing else. Subclasses are not meant."""


def may_crop(cache: Any) -> bool:
    """Whether a cache, or a new one of its kind, loses nothing but tokens by being cropped."""
    kinds = {class_name(layer) for layer in cache.layers}
    if getattr(cache, "layer_class_to_replicate", None) is not None:
        kinds.add(class_name(cache.layer_class_to_replicate))
    return bool(kinds) and kinds <= EXACT


def crop(cache: Any, n_tokens: int) -> None:
    """Leave the first `n_tokens` of a cache, in place. Where that is not exact: UnsupportedModel, nothing changed."""
    if not may_crop(cache):
        others = sorted({class_name(layer) for layer in cache.layers} - EXACT)
        raise UnsupportedModel(
            f"a cache with {', '.join(others) or 'no layers'} cannot be cut exactly: read the tokens"
        )
    for layer in cache.layers:
        if layer.is_initialized:
            layer.keys = layer.keys[:, :, :n_tokens]
            layer.values = layer.values[:, :, :n_tokens]
