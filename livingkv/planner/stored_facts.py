"""What a folder's files add to what its config says: the bytes that the weights really take.

Reads headers of safetensors only. Knows names of tensors; knows no laws.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from livingkv.errors import ModelError
from livingkv.experts.checkpoint import read_checkpoint
from livingkv.planner.config_facts import Counted

_OF_EXPERTS = re.compile(r"\.experts\.")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})\.")
_INPUTS = frozenset({"embed_tokens", "wte", "word_embeddings", "embeddings", "embed_in", "tok_embeddings"})
"""What the input embedding is called, in files perhaps otherwise than in the network."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes in the files: all, of experts, of tables of rows; parameters where all are plain numbers."""

    n_bytes: int
    experts: int
    rows: int
    parameters: int | None


def stored_in(folder: Path, found: Counted) -> Stored | None:
    """None where the folder does not hold all of its weights. Layers beyond those of the network, which predict more
    than one token, are left out. Raises ModelDamaged for a header that is none."""
    try:
        checkpoint = read_checkpoint(folder)
    except ModelError:
        if any(folder.glob("*.safetensors")) and not (folder / "model.safetensors.index.json").is_file():
            raise
        return None
    tensors = {
        name: one.tensor
        for name, one in checkpoint.tensors.items()
        if (at := _LAYER.search(name)) is None or int(at[1]) < found.n_layers
    }
    tables = found.row_tables | (_INPUTS if found.row_tables & _INPUTS else frozenset())
    plain = all(tensor.dtype in ("BF16", "F16", "F32") for tensor in tensors.values())
    return Stored(
        sum(tensor.n_bytes for tensor in tensors.values()),
        sum(tensor.n_bytes for name, tensor in tensors.items() if _OF_EXPERTS.search(name)),
        sum(tensor.n_bytes for name, tensor in tensors.items() if _is_of(tables, name)),
        sum(math.prod(tensor.shape) for tensor in tensors.values()) if plain else None,
    )


def _is_of(tables: Container[str], name: str) -> bool:
    module, _, last = name.rpartition(".")
    return last == "weight" and module.rpartition(".")[2] in tables


def bits_of(found: Counted, stored: Stored) -> dict[str, float | None]:
    """Bits of weights, and bytes of an expert, from bytes in files and parameters of the network."""
    values = found.values
    total, resident, steady = (values.get(f"{name}parameters") for name in ("", "resident_", "steady_"))
    outside = stored.n_bytes - stored.experts
    read = outside - stored.rows
    layers, experts = values.get("moe_layers"), values.get("experts")
    size = (
        None if layers is None or experts is None else stored.experts / (layers * experts) if layers * experts else 0.0
    )
    return {
        "weight_bits": _bits(stored.n_bytes, total),
        "resident_bits": _bits(outside, resident),
        "steady_bits": _bits(read, steady),
        "expert_bytes": size,
    }


def _bits(n_bytes: int, parameters: float | None) -> float | None:
    return 8 * n_bytes / parameters if parameters else None
