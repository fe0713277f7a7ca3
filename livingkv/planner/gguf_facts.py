"""Facts of a model from a GGUF file: metadata and the list of its tensors; no weight is read.

Knows GGUF's names; knows no laws.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from livingkv.errors import ModelDamaged, UnsupportedModel
from livingkv.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from livingkv.model_loading import first_line
from livingkv.planner.fact import KV_SYMBOLS, ModelFacts, facts_of
from livingkv.planner.kv_facts import kv_facts
from livingkv.planner.kv_layers import LayerKeeps

_BLOCK = re.compile(r"blk\.(\d{1,6})\.(.+)")
_EXPERTS = re.compile(r"ffn_(?:gate|up|down|gate_up)_exps\.")
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_ROW_TABLES = ("per_layer_token_embd.weight", "position_embd.weight")
"""Tables of which a token takes a row, and that are nobody's output."""
_SHARING = ("gemma3n", "gemma4")
"""Architectures whose later layers may attend what earlier ones keep."""


def gguf_facts(path: Path) -> ModelFacts:
    """Raises ModelDamaged for what is no whole GGUF file, UnsupportedModel for one of several parts."""
    header = read_gguf_header(path)
    try:
        return _facts(path, header)
    except (IndexError, ZeroDivisionError, OverflowError, ValueError) as error:
        raise ModelDamaged(f"{path}: its header does not go together ({first_line(error)})") from error


def _facts(path: Path, header: GgufHeader) -> ModelFacts:
    fields, tensors = _Fields(header.metadata), header.tensors
    parts = fields.number("split.count", of_model=False)
    if parts and parts > 1:
        raise UnsupportedModel(f"{path.name}: this is one of {parts:g} files; merge them with llama-gguf-split first")
    if _EMBEDDING not in tensors:
        raise UnsupportedModel(f"{path.name}: it holds no {_EMBEDDING}, so that it is no language model")
    values, why_not, size = _weights(tensors, fields)
    layers = _layers(tensors, fields)
    page_bits = None
    if layers is None:
        reason = "the file does not say what its layers keep"
        why_not |= dict.fromkeys(KV_SYMBOLS, reason)
    else:
        kept = kv_facts(layers)
        values, why_not, page_bits = {**values, **kept.values}, {**why_not, **kept.why_not}, kept.page_bits
    values["native_context"] = fields.number("context_length")
    found = facts_of(values, "the GGUF file's header", why_not)
    return ModelFacts(path.stem, fields.architecture, found, page_bits, size)


class _Fields:
    """Metadata by name, those of the architecture without its prefix."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.architecture = str(self._contents("general.architecture"))

    def number(self, name: str, *, of_model: bool = True) -> float | None:
        """A number; None where there is none."""
        found = self._contents(f"{self.architecture}.{name}" if of_model else name)
        return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None

    def of_layer(self, name: str, layer: int) -> float | None:
        """A number that may be a list of one for each layer."""
        found = self._contents(f"{self.architecture}.{name}")
        if isinstance(found, list):
            return float(found[layer]) if layer < len(found) else None
        return float(found) if isinstance(found, (int, float)) else None

    def _contents(self, name: str) -> Any:
        return self._metadata.get(name)


def _weights(
    tensors: Mapping[str, GgufTensor], fields: _Fields
) -> tuple[dict[str, float | None], dict[str, str], float | None]:
    """Values of symbols, why others are unknown, parameters of one expert."""
    inside = [tensor for name, tensor in tensors.items() if _EXPERTS.search(name)]
    total, n_bytes = _sums(list(tensors.values()))
    in_experts, expert_bytes = _sums(inside)
    rows = (*_ROW_TABLES, *((_EMBEDDING,) if _OUTPUT in tensors else ()))
    embedding = _sums([tensors[name] for name in rows if name in tensors])
    layers = len({found[1] for name in tensors if _EXPERTS.search(name) and (found := _BLOCK.fullmatch(name))})
    experts, chosen = fields.number("expert_count") or 0, fields.number("expert_used_count")
    resident, steady = total - in_experts, total - in_experts - embedding[0]
    values: dict[str, float | None] = {
        "parameters": total,
        "resident_parameters": resident,
        "steady_parameters": steady,
        "weight_bits": 8 * n_bytes / total,
        "resident_bits": 8 * (n_bytes - expert_bytes) / resident,
        "steady_bits": 8 * (n_bytes - expert_bytes - embedding[1]) / steady,
        "moe_layers": layers,
        "experts": experts,
        "experts_per_token": chosen if experts else 0,
        "expert_bytes": expert_bytes / (layers * experts) if layers and experts else 0.0,
    }
    if experts and (not layers or chosen is None):
        reason = "the file's experts are stored in a way that is not understood"
        names = ("moe_layers", "experts_per_token", "expert_bytes", "resident_parameters", "steady_parameters")
        return (
            {**values, **dict.fromkeys(names)},
            dict.fromkeys((*names, "active_parameters", "reading_parameters"), reason),
            None,
        )
    size = in_experts / (layers * experts) if layers and experts else None
    active = steady + (layers * (chosen or 0) * size if size else 0)
    head = tensors[_OUTPUT if _OUTPUT in tensors else _EMBEDDING].n_elements
    values |= {"active_parameters": active, "reading_parameters": active - head}
    return values, {}, size


def _sums(tensors: list[GgufTensor]) -> tuple[int, int]:
    return sum(one.n_elements for one in tensors), sum(one.n_bytes for one in tensors)


def _layers(tensors: Mapping[str, GgufTensor], fields: _Fields) -> list[LayerKeeps] | None:
    """What each layer keeps; None where one is not understood."""
    n_layers = fields.number("block_count")
    window = fields.number("attention.sliding_window")
    latent, rope = fields.number("attention.kv_lora_rank"), fields.number("rope.dimension_count")
    slides = _sliding(fields, int(n_layers or 0)) if window else []
    shared = fields.number("attention.shared_kv_layers")
    found = []
    if not n_layers or n_layers > 4096 or slides is None or (shared is None and fields.architecture in _SHARING):
        return None
    for number in range(int(n_layers)):
        if number >= n_layers - (shared or 0):
            found.append(LayerKeeps())
            continue
        kept_for = int(window) if window and slides[number] else None
        key, value = (tensors.get(f"blk.{number}.attn_{name}.weight") for name in "kv")
        if any(f"blk.{number}.{name}" in tensors for name in ("ssm_conv1d.weight", "ssm_a", "shortconv.conv.weight")):
            found.append(LayerKeeps(state_bytes=None))
        if key is not None and value is not None:
            keys, values = key.shape[1], value.shape[1]
            heads = fields.of_layer("attention.head_count_kv", number)
            even = heads and keys == values and keys % heads == 0
            found.append(
                LayerKeeps(keys + values, kept_for, 0, (int(heads), int(keys // heads)) if heads and even else None)
            )
        elif f"blk.{number}.attn_kv_a_mqa.weight" in tensors and latent and rope:
            found.append(LayerKeeps(int(latent + rope), kept_for))
        elif f"blk.{number}.attn_qkv.weight" in tensors:
            heads, dim = fields.of_layer("attention.head_count_kv", number), _head_dim(fields)
            if not heads or not dim:
                return None
            found.append(LayerKeeps(int(2 * heads * dim), kept_for, 0, (int(heads), int(dim))))
        elif not any(
            f"blk.{number}.{name}" in tensors for name in ("ssm_conv1d.weight", "ssm_a", "shortconv.conv.weight")
        ):
            return None
    return found


def _head_dim(fields: _Fields) -> float | None:
    given = fields.number("attention.key_length")
    width, heads = fields.number("embedding_length"), fields.number("attention.head_count")
    return given or (width // heads if width and heads else None)


def _sliding(fields: _Fields, n_layers: int) -> list[bool] | None:
    """Which layers have the window. Where the file has no pattern it depends on the architecture: None but for those
    in which all layers have it."""
    pattern = [fields.of_layer("attention.sliding_window_pattern", number) for number in range(n_layers)]
    if all(one is not None for one in pattern):
        period = pattern[0] or 0
        if len(set(pattern)) == 1 and period > 1:  # every so many layers one attends to everything
            return [(number + 1) % int(period) != 0 for number in range(n_layers)]
        return [bool(one) for one in pattern]
    return [True] * n_layers if fields.architecture in ("llama", "mistral", "starcoder2") else None
