"""What is known of a model folder before any weight is read: class, config, index, formats.

Knows folders and headers; refuses to know RAM and reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from livingkv.errors import InputError, UnsupportedModel
from livingkv.experts.checkpoint import read_checkpoint
from livingkv.experts.formats import Format, format_of
from livingkv.experts.index import ExpertIndex, build_index
from livingkv.experts.names import ExpertTensor, expert_tensors
from livingkv.experts.row_loading import FoundTable, find_tables
from livingkv.experts.skeleton import ExpertModule, causal_class, expert_modules, skeleton
from livingkv.model_loading import read_config


@dataclass(frozen=True, slots=True)
class Plan:
    """How a folder is going to be loaded. tensors: those that are experts'. formats: one for each layer."""

    folder: Path
    found: type
    config: Any
    dtype: torch.dtype
    device: torch.device
    modules: list[ExpertModule]
    tensors: Mapping[str, ExpertTensor]
    index: ExpertIndex
    formats: tuple[Format, ...]
    tables: tuple[FoundTable, ...]

    @property
    def kept_on_disk(self) -> set[str]:
        """The stored tensors that the network is loaded without."""
        return {*self.tensors, *(name for table in self.tables for name in table.tensors)}


def plan_of(
    folder: Path,
    dtype: torch.dtype | None,
    device: torch.device,
    formats: tuple[Format, ...],
    *,
    rows_on_disk: bool = False,
) -> Plan:
    """Read config and headers of a folder. dtype: None as in the config. rows_on_disk: tables of rows stay there.

    Raises ModelNotFound, ModelDamaged, and UnsupportedModel where experts or their format are not understood.
    """
    if device.type not in ("cpu", "cuda"):
        raise InputError("device", device, "cpu and cuda are allowed")
    outer = read_config(folder)
    if getattr(outer, "quantization_config", None) is not None:
        raise UnsupportedModel(f"{folder}: its weights are quantized, and streaming knows none of that yet")
    found, config = causal_class(outer)
    checkpoint = read_checkpoint(folder)
    dtype = dtype or config.dtype or outer.dtype or torch.get_default_dtype()
    bare = skeleton(found, config, dtype)
    modules = expert_modules(bare)
    tensors = expert_tensors(checkpoint.tensors, bare, modules)
    index = build_index(checkpoint, modules, tensors, for_device=device.type != "cpu")
    forms = tuple(format_of(layer, module, formats) for layer, module in zip(index.layers, modules, strict=True))
    tables = find_tables(checkpoint, bare) if rows_on_disk else ()
    return Plan(folder, found, config, dtype, device, modules, tensors, index, forms, tables)
