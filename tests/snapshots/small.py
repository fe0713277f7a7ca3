"""Small caches with plain keys and values, and stores for their snapshots."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers.cache_utils import DynamicCache

from livingkv.snapshots import SnapshotKey, Snapshots
from livingkv.store.disk import Disk

KEY = SnapshotKey("model", "config", "code", "cache", "place")
ONE = 4 * 2 * 8 * 3  # bytes of the state of a token


def fresh() -> DynamicCache:
    return DynamicCache()


def cache_of(n_tokens: int, value: float = 1.0) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(3):
        keys = torch.full((1, 1, n_tokens, 8), value + layer)
        cache.update(keys, keys + 0.5, layer)
    return cache


def opened(
    folder: Path | None,
    *,
    key: SnapshotKey = KEY,
    ram: int = 1 << 20,
    disk_bytes: int = 1 << 20,
    disk: Disk | None = None,
) -> Snapshots:
    return Snapshots(folder, key, fresh, ram_bytes=ram, disk_bytes=disk_bytes, disk=disk)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())
