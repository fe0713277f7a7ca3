"""What a state belongs to: model, config, code, kind of cache, place of computing. Another key is another state.

Knows networks of transformers; refuses to know tokens and files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from livingkv.snapshots.state import class_name

VERSION = 1
_NOT_OF_THE_MODEL = ("_name_or_path", "name_or_path")


@dataclass(frozen=True, slots=True)
class SnapshotKey:
    """See FORMAT.md. Every part is compared, whatever a file is called."""

    model: str
    config: str
    code: str
    cache: str
    place: str

    @property
    def digest(self) -> str:
        """SHA-256 in hex."""
        return _digest(asdict(self))

    def differences(self, stored: object) -> tuple[str, ...]:
        """The names of the parts in which a key, as JSON has it, is another one."""
        mine = asdict(self)
        other = stored if isinstance(stored, dict) else {}
        return tuple(sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name)))


def snapshot_key(network: Any, model_digest: str, fresh: Callable[[], Any]) -> SnapshotKey:
    """The key of a network's states. model_digest: of its weights, from whoever loaded it. fresh: makes its caches."""
    cache = fresh()
    config = {name: value for name, value in network.config.to_dict().items() if name not in _NOT_OF_THE_MODEL}
    classes = [class_name(cache), *(class_name(layer) for layer in cache.layers)]
    first = next(network.parameters())
    attention = getattr(network.config, "_attn_implementation", None)
    return SnapshotKey(
        model=model_digest,
        config=_digest(config),
        code=f"snapshot {VERSION}, transformers {version('transformers')}, torch {version('torch')}",
        cache=_digest(classes),
        place=f"{first.device.type} {first.dtype} {attention}",
    )


def fresh_cache(network: Any) -> Callable[[], Any]:
    """What makes the caches that transformers itself would make for the network."""

    def make() -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=network.config)

    return make


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
