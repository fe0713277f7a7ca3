"""What is known of a model folder before any weight is read: class, config, index, formats.

Knows folders and headers; refuses to know RAM and reads.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from livingkv.errors import InputError, UnsupportedModel
from livingkv.experts.checkpoint import Checkpoint, read_checkpoint
from livingkv.experts.formats import Format, format_of
from livingkv.experts.index import ExpertIndex, build_index
from livingkv.experts.names import expert_tensors
from livingkv.experts.pack_choice import AskedPack, indexed
from livingkv.experts.quantization import PLAIN, StoredAs, scheme_of
from livingkv.experts.row_loading import FoundTable, find_tables
from livingkv.experts.skeleton import ExpertModule, causal_class, expert_modules, skeleton
from livingkv.model_loading import read_config

LOG = logging.getLogger("livingkv.experts")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a folder is going to be loaded.

    index: over the folder, or over a pack of its experts. rest: tensors that are not experts'. formats: of each layer.
    """

    folder: Path
    found: type
    config: Any
    dtype: torch.dtype
    device: torch.device
    modules: list[ExpertModule]
    checkpoint: Checkpoint
    rest: Mapping[str, StoredAs]
    index: ExpertIndex
    formats: tuple[Format, ...]
    tables: tuple[FoundTable, ...]


def plan_of(
    folder: Path,
    dtype: torch.dtype | None,
    device: torch.device,
    formats: tuple[Format, ...],
    pack: AskedPack = "off",
    *,
    rows_on_disk: bool = False,
) -> Plan:
    """Read config and headers of a folder, and the manifest of a pack of its experts. dtype: None as in the config.
    rows_on_disk: tables of rows are to stay there.

    Raises ModelNotFound, ModelDamaged, UnsupportedModel where experts or their format are not understood, PackError.
    """
    if device.type not in ("cpu", "cuda"):
        raise InputError("device", device, "cpu and cuda are allowed")
    outer = read_config(folder)
    try:
        scheme = scheme_of(_taken(outer))
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{folder}: its weights are quantized: {error}") from error
    found, config = causal_class(outer)
    checkpoint = read_checkpoint(folder)
    names = scheme.sorted(checkpoint.tensors)
    dtype = dtype or config.dtype or outer.dtype or torch.get_default_dtype()
    bare = skeleton(found, config, dtype)
    modules = expert_modules(bare)
    tensors = expert_tensors(names, bare, modules)
    index = build_index(checkpoint, modules, tensors, for_device=device.type != "cpu")
    own, index = index, indexed(pack, folder, index, for_device=device.type != "cpu")
    if index is own and LOG.isEnabledFor(logging.INFO) and (report := index.report()).pack_pays:
        LOG.info("%s: an expert is %.1f reads; in a pack it would be one", folder, report.reads_per_expert)
    forms = tuple(format_of(layer, module, formats) for layer, module in zip(index.layers, modules, strict=True))
    tables = find_tables(checkpoint, names, bare) if rows_on_disk else ()
    elsewhere = {*tensors, *(name for table in tables for name in table.tensors)}
    rest = _rest(checkpoint, names, elsewhere, is_coded=scheme is not PLAIN)
    return Plan(folder, found, config, dtype, device, modules, checkpoint, rest, index, forms, tables)


def refuse_unstreamable(name: str, config: Any) -> None:
    """Return when experts of a model with that config may be streamed; else raise UnsupportedModel, as `plan_of` would
    with its files. The network is built without memory, which takes a moment. The config stays as it is."""
    own = copy.deepcopy(config)
    try:
        scheme_of(_taken(own))
        found, inner = causal_class(own)
        expert_modules(skeleton(found, inner, torch.get_default_dtype()))
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{name}: {error}") from error


def _rest(
    checkpoint: Checkpoint, names: Mapping[str, StoredAs], without: Container[str], *, is_coded: bool
) -> dict[str, StoredAs]:
    """What the network itself is loaded from. Codes that nothing says the scale of would be taken for numbers."""
    rest = {name: stored for name, stored in names.items() if name not in without}
    for name, stored in rest.items():
        if is_coded and not stored.role and checkpoint.tensors[name].tensor.dtype.startswith("F8"):
            raise UnsupportedModel(f"{name}: it is stored as {checkpoint.tensors[name].tensor.dtype} without scales")
    return rest


def _taken(outer: Any) -> Any:
    """A config's quantization_config, which it then has no more: the network is one of plain numbers."""
    settings = None
    for config in (outer, outer.get_text_config()):
        if getattr(config, "quantization_config", None) is not None:
            settings = settings or config.quantization_config
            del config.quantization_config
    return settings
