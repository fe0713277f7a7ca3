"""A cache of transformers as JSON and tensors, and back: every variable of the cache and of each of its layers.

Knows that caches are objects with variables; refuses to know what these mean, so that recurrent, convolution, indexer
and compressor states are all alike to it. What it does not understand it refuses. No class is made by name: variables
are set on a new cache of the model's own kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import SnapshotDamaged, UnsupportedModel
from livingkv.snapshots.memory_blocks import Block, View, packed, unpacked

Json = Any
"""What json.loads answers."""

_OWN = {"layers", "layer_class_to_replicate"}


@dataclass(frozen=True, slots=True)
class State:
    """A cache at rest. Nothing of it is memory of a living cache."""

    cache: Json
    layers: Json
    blocks: list[Block]
    views: list[View]

    @property
    def n_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.n_bytes for block in self.blocks)


def class_name(value: object) -> str:
    """Module and name of an object's class, or of a class."""
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def state_of(cache: Any) -> State:
    """A copy of the state of a cache, which is not changed. Raises UnsupportedModel for what it does not understand."""
    writer = _Writer()
    outer = {"class": class_name(cache), "vars": writer.variables(cache, _OWN)}
    layers = [{"class": class_name(layer), "vars": writer.variables(layer, set())} for layer in cache.layers]
    blocks, views = packed(writer.tensors)
    return State(outer, layers, blocks, views)


def restored_cache(state: State, fresh: Callable[[], Any], device: torch.device) -> Any:
    """A new cache in that state, in memory of its own. SnapshotDamaged where it does not fit the model's caches."""
    try:
        return _restored(state, fresh(), device)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise SnapshotDamaged(f"a state makes no cache ({error!r})") from error


def _restored(state: State, cache: Any, device: torch.device) -> Any:
    replicated = getattr(cache, "layer_class_to_replicate", None)
    while replicated is not None and len(cache.layers) < len(state.layers):
        cache.layers.append(replicated())
    if len(cache.layers) != len(state.layers):
        raise SnapshotDamaged(f"the state of {len(state.layers)} layers does not fit a model of {len(cache.layers)}")
    tensors = unpacked(state.blocks, state.views, device)
    for target, kept in [(cache, state.cache), *zip(cache.layers, state.layers, strict=True)]:
        if class_name(target) != kept["class"]:
            raise SnapshotDamaged(f"a state of {kept['class']} does not fit {class_name(target)}")
        for name, value in kept["vars"].items():
            if name not in vars(target) and hasattr(type(target), name):
                raise SnapshotDamaged(f"a state sets {name}, which {class_name(target)} has as something else")
            setattr(target, name, _value(value, tensors, device))
    return cache


class _Writer:
    """Values as JSON. Tensors are collected, each once."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}
        self._containers: set[int] = set()

    def variables(self, target: Any, without: set[str]) -> Json:
        """The variables of an object."""
        return {name: self._json(name, value) for name, value in vars(target).items() if name not in without}

    def _json(self, name: str, value: object) -> Json:
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, Tensor):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self.tensors)
                self.tensors.append(value)
            return {"tensor": self._numbers[id(value)]}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": value.type}
        return self._container(name, value)

    def _container(self, name: str, value: object) -> Json:
        if type(value) in (list, dict):
            if id(value) in self._containers:
                raise UnsupportedModel(
                    f"{name}: a state that holds one list or dict twice cannot be kept in a snapshot"
                )
            self._containers.add(id(value))
        if type(value) in (list, tuple):
            return {type(value).__name__: [self._json(name, one) for one in value]}  # type: ignore[attr-defined]
        if type(value) is dict and all(type(key) in (int, str) for key in value):
            return {"dict": [[key, self._json(f"{name}[{key}]", one)] for key, one in value.items()]}
        raise UnsupportedModel(f"{name}: a state of {class_name(value)} cannot be kept in a snapshot")


def _value(value: Json, tensors: list[Tensor], device: torch.device) -> object:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "float":
        return float.fromhex(inner)
    if kind == "tensor":
        return tensors[inner]
    if kind == "dtype":
        found = getattr(torch, inner)
        if not isinstance(found, torch.dtype):
            raise SnapshotDamaged(f"a state names {inner}, which is no type")
        return found
    if kind == "device":
        return torch.device("cpu") if inner == "cpu" else device
    if kind == "dict":
        return {key: _value(one, tensors, device) for key, one in inner}
    items = [_value(one, tensors, device) for one in inner]
    return items if kind == "list" else tuple(items)
