"""Names of tensors on disk to parts of experts, by transformers' own conversion mapping.

The only module that knows how transformers renames and joins tensors. What it does to the values of experts is
understood where it is stacking them and joining pieces along their first dimension; everything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from livingkv.errors import UnsupportedModel
from livingkv.experts.keys import PartName
from livingkv.experts.quantization import StoredAs
from livingkv.experts.skeleton import ExpertModule

_OF_ONE_EXPERT = re.compile(r"(\.experts\.)(\d+)(\.)")


class ExpertTensor(NamedTuple):
    """A stored tensor that belongs to experts. `expert` is None for one that holds all experts of its layer."""

    layer: int
    expert: int | None
    part: PartName


def expert_tensors(names: Mapping[str, StoredAs], network: Any, modules: list[ExpertModule]) -> dict[str, ExpertTensor]:
    """Those of the names that belong to experts of the network. Raises UnsupportedModel for joins not understood."""
    renaming = _Renaming(network, modules)
    found = {}
    for on_disk, (name, role) in names.items():
        single = _OF_ONE_EXPERT.search(name)
        # transformers renames all experts of a layer alike, so one of them is asked for all
        template = _OF_ONE_EXPERT.sub(r"\g<1>0\g<3>", name, count=1) if single else name
        place = renaming.place(template)
        if place is not None:
            layer, part, is_stacked = place
            if is_stacked != (single is not None):
                raise UnsupportedModel(f"{name}: experts stored like this are not understood")
            found[on_disk] = ExpertTensor(layer, int(single[2]) if single else None, part._replace(role=role))
    return found


class _Renaming:
    """transformers' renaming for one network, each name looked up once."""

    def __init__(self, network: Any, modules: list[ExpertModule]) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        transforms = get_model_conversion_mapping(network)
        self._renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
        self._converters = [one for one in transforms if isinstance(one, WeightConverter)]
        self._prefix = network.base_model_prefix
        self._parameters = network.state_dict()
        self._places = {
            f"{module.name}.{tensor}": (layer, tensor)
            for layer, module in enumerate(modules)
            for tensor in module.parameters
        }
        self._known: dict[str, tuple[int, PartName, bool] | None] = {}

    def place(self, name: str) -> tuple[int, PartName, bool] | None:
        """Layer and part of a name, and whether transformers stacks it with other experts'; None: no expert's."""
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> tuple[int, PartName, bool] | None:
        renamed, pattern = self._rename(name, self._renamings, self._converters)
        if renamed not in self._parameters and name in self._parameters:
            renamed, pattern = self._rename(name, [], [])
        place = self._places.get(renamed)
        if place is None:
            return None
        layer, tensor = place
        if pattern is None:
            return layer, PartName(tensor, 0), False
        converter = next(one for one in self._converters if pattern in one.source_patterns)
        return layer, PartName(tensor, converter.source_patterns.index(pattern)), self._is_stacked(name, converter)

    def _rename(self, name: str, renamings: list[Any], converters: list[Any]) -> tuple[str, str | None]:
        from transformers.core_model_loading import rename_source_key

        renamed, pattern = rename_source_key(name, renamings, converters, self._prefix, self._parameters)
        return str(renamed), None if pattern is None else str(pattern)

    @staticmethod
    def _is_stacked(name: str, converter: Any) -> bool:
        steps = [(type(step).__name__, getattr(step, "dim", None)) for step in converter.operations]
        if steps not in ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)]):
            words = ", ".join(step for step, _ in steps)
            raise UnsupportedModel(f"{name}: transformers loads it through {words}, which streaming does not know yet")
        return True
