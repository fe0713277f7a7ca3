"""Where a model comes from: a local folder, a GGUF file, a hub id or a short name become a model folder.

Knows names, livingkv's cache and the order of sources; model_fetch.py fetches, gguf_conversion.py converts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from livingkv.errors import ModelNotFound
from livingkv.model_fetch import Progress


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder with config.json, tokenizer files and safetensors weights. `name` is what to call the model."""

    name: str
    folder: Path


def cache_folder() -> Path:
    """Where livingkv keeps what it fetched and made: $LIVINGKV_CACHE, else $XDG_CACHE_HOME/livingkv or its default."""
    own = os.environ.get("LIVINGKV_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "livingkv"


def find_model(spec: str | Path | None, progress: Progress | None = None) -> ModelFolder:
    path = Path(spec or os.environ.get("LIVINGKV_MODEL") or "")
    if path.is_dir():
        return ModelFolder(path.name, path)
    raise ModelNotFound(f"{spec}: no such model")
