"""Facts of a model by what a person calls it: a folder, a config.json, a GGUF file, or a hub id in the local cache.

Nothing is fetched, no weight is read. Knows where to look; what is found is the other *_facts modules'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from livingkv.errors import InputError, ModelNotFound, UnsupportedModel
from livingkv.gguf_conversion import converted_folder
from livingkv.json_fields import FieldError, Fields
from livingkv.model_sources import HUB_IDS, PUBLISHED, cache_folder
from livingkv.planner.config_facts import Counted, config_of, counted
from livingkv.planner.fact import Fact, ModelFacts, facts_of
from livingkv.planner.gguf_facts import gguf_facts
from livingkv.planner.laws import laws
from livingkv.planner.stored_facts import bits_of, stored_in
from livingkv.planner.units import Amount
from livingkv.regular_files import is_file, is_folder, read_regular

_MOST_CONFIG_BYTES = 1 << 20
_NO_BITS = "the config does not say it"


def model_facts(spec: str) -> ModelFacts:
    """Of a local model. Raises ModelNotFound, ModelDamaged, UnsupportedModel or InputError; never asks the network."""
    path = Path(spec).expanduser()
    if is_folder(path):
        ggufs = sorted(path.glob("*.gguf"))
        if not (path / "config.json").is_file() and len(ggufs) == 1:
            return gguf_facts(ggufs[0])
        return _of_folder(path.resolve().name, path)
    if is_file(path):
        if path.suffix.lower() == ".gguf":
            return gguf_facts(path)
        return config_facts(path.resolve().parent.name or path.stem, _read(path))
    return cached_facts(spec)


def cached_facts(name: str) -> ModelFacts:
    """Of a short name or a hub id whose config is in a local cache; never a path. Raises as `model_facts` does."""
    published = PUBLISHED.get(name.lower())
    if published is not None:
        folder = converted_folder(Path(published.file_name), published.sha256, cache_folder())
        if folder.is_dir():
            return _of_folder(name.lower(), folder)
        raise ModelNotFound(f"{name}: it is not here yet; run `livingkv model fetch {name}`")
    repo = HUB_IDS.get(name.lower(), name)
    folder_found = _hub_folder(repo)
    if folder_found is None:
        what = "neither a folder, config.json or GGUF file here nor a hub id in the local cache"
        raise ModelNotFound(f"{name[:100]!r} is {what}: fetch it, or give a config.json")
    return _of_folder(repo, folder_found)


def _hub_folder(repo: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repo, "config.json")
    except (HFValidationError, OSError, ValueError):
        return None
    return Path(found).parent if isinstance(found, str) else None


def config_facts(name: str, values: Mapping[str, Any]) -> ModelFacts:
    """Of what a config.json holds. A type that transformers does not know leaves everything unknown."""
    kind = str(values.get("model_type", "unknown"))[:100]
    try:
        found = counted(config_of(values))
    except UnsupportedModel as error:
        reason = str(error)
        return ModelFacts(name, kind, facts_of({}, "", dict.fromkeys(laws().symbols, reason)), remarks=(reason,))
    return _plain(name, found, "the config, and the network that transformers makes of it")


def network_facts(name: str, config: Any, folder: Path | None) -> ModelFacts:
    """Of a config that is loaded already, such as a served model's. folder: with its weights."""
    return config_facts(name, config.to_dict()) if folder is None else _of_folder(name, folder)


def _of_folder(name: str, folder: Path) -> ModelFacts:
    model = config_facts(name, _read(folder / "config.json"))
    if model.remarks:
        return model
    found = counted(config_of(_read(folder / "config.json")))
    stored = stored_in(folder, found)
    if stored is None:
        return model
    units = laws().symbols
    exact = {
        symbol: Fact(Amount(value, units[symbol].unit), "headers of the safetensors files, and the config")
        for symbol, value in bits_of(found, stored).items()
        if value is not None
    }
    return ModelFacts(name, model.kind, {**model.facts, **exact}, model.page_bits, model.expert_parameters)


def _plain(name: str, found: Counted, source: str) -> ModelFacts:
    values, why_not = dict(found.values), dict(found.why_not)
    bits = found.dtype_bits
    for symbol in ("weight_bits", "resident_bits", "steady_bits"):
        values[symbol] = bits
        why_not[symbol] = _NO_BITS
    if found.expert_parameters is not None:
        values["expert_bytes"] = None if bits is None else found.expert_parameters * bits / 8
        why_not.setdefault("expert_bytes", _NO_BITS)
    return ModelFacts(name, found.kind, facts_of(values, source, why_not), found.page_bits, found.expert_parameters)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_regular(path, _MOST_CONFIG_BYTES + 1)
    except OSError as error:
        raise ModelNotFound(f"{path}: it cannot be read ({error.strerror or error})") from error
    if len(data) > _MOST_CONFIG_BYTES:
        raise InputError(
            "MODEL", path, f"a config.json of at most {_MOST_CONFIG_BYTES:,} bytes, a GGUF file or a folder is allowed"
        )
    try:
        Fields.read(data)
    except FieldError as error:
        raise InputError("MODEL", path, f"a config.json is expected there: {error}") from error
    found: dict[str, Any] = json.loads(data)
    return found
