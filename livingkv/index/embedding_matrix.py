"""A model's input embeddings, memory-mapped from its safetensors files: nothing is read until rows are used.

Knows the safetensors header (eight bytes of length, then JSON) and the names that models use; loads no torch.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from livingkv.errors import ModelDamaged, ModelNotFound

_NAMES = ("model.embed_tokens.weight", "transformer.wte.weight", "gpt_neox.embed_in.weight", "embed_tokens.weight")
_DTYPES: dict[str, np.dtype[Any]] = {"BF16": np.dtype("<u2"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


def map_embedding_matrix(folder: Path) -> npt.NDArray[np.generic]:
    """The input embeddings [vocabulary, hidden] of a Hugging Face folder, as TokenEmbedder takes them.

    bfloat16 comes as its bits in uint16. Raises ModelNotFound when no file holds them, ModelDamaged when one cannot be
    read.
    """
    for path in sorted(folder.glob("*.safetensors")):
        header, data_lo = _header(path)
        found = [name for name in header if name.endswith(_NAMES)]
        if found:
            return _mapped(path, header[found[0]], data_lo)
    raise ModelNotFound(f"no safetensors file in {folder} holds input embeddings; give a Hugging Face model folder")


def _header(path: Path) -> tuple[dict[str, Any], int]:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > path.stat().st_size:
                raise ModelDamaged(f"{path} is cut short or no safetensors file; fetch the model again")
            header: dict[str, Any] = json.loads(file.read(size))
            return header, 8 + size
    except (ValueError, struct.error) as error:
        raise ModelDamaged(f"{path} has no readable safetensors header; fetch the model again") from error


def _mapped(path: Path, entry: dict[str, Any], data_lo: int) -> npt.NDArray[np.generic]:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None or len(entry["shape"]) != 2:
        kind = f"{entry['dtype']} {entry['shape']}"
        raise ModelDamaged(
            f"the input embeddings in {path} are {kind}; two dimensions of {', '.join(_DTYPES)} are needed"
        )
    lo, hi = entry["data_offsets"]
    shape = (int(entry["shape"][0]), int(entry["shape"][1]))
    if hi - lo != shape[0] * shape[1] * dtype.itemsize or data_lo + hi > path.stat().st_size:
        raise ModelDamaged(f"{path} is cut short; fetch the model again")
    mapped: npt.NDArray[np.generic] = np.memmap(path, dtype, "r", data_lo + lo, shape)
    return mapped
