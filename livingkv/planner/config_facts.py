"""Facts of a model from its config: the network is built without memory, and counted.

Knows transformers' configs and networks; files are stored_facts'. Code that comes with a model is never run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from livingkv.errors import UnsupportedModel
from livingkv.experts.skeleton import causal_class, expert_parameters, is_experts, skeleton
from livingkv.model_loading import first_line, quiet
from livingkv.planner.fact import KV_SYMBOLS
from livingkv.planner.kv_facts import kv_facts
from livingkv.planner.kv_layers import layers_of

_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k", "experts_per_token")
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
_BUILD = (
    ValueError,
    RuntimeError,
    TypeError,
    AttributeError,
    KeyError,
    ImportError,
    IndexError,
    ArithmeticError,
    AssertionError,
)
_MOST_LAYERS, _MOST_EXPERTS, _MOST_NAMED = 1024, 1 << 17, 1 << 20
_OF_TOKENS = ("resident_parameters", "steady_parameters", "active_parameters", "reading_parameters")
_WINDOWS = frozenset({"sliding_window", "attention_chunk_size"})
_NO_EXPERTS = {"moe_layers": 0.0, "experts": 0.0, "experts_per_token": 0.0, "expert_bytes": 0.0}


@dataclass(frozen=True, slots=True)
class Counted:
    """What a network without memory says. values: of symbols; bits and bytes are not among them.

    row_tables: last names of modules that are tables of which a token takes a row: embeddings but one that is the
    output's, too.
    """

    kind: str
    values: Mapping[str, float | None]
    why_not: Mapping[str, str]
    page_bits: float | None
    expert_parameters: float | None
    row_tables: frozenset[str]
    n_layers: int
    dtype_bits: int | None


def config_of(values: Mapping[str, Any]) -> Any:
    """The Hugging Face config of what a config.json holds. Raises UnsupportedModel for a type that transformers does
    not know and for values that do not go together."""
    from transformers import CONFIG_MAPPING

    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise UnsupportedModel(f"{str(kind)[:40]!r}: transformers knows no model of this type")
    require_modest(values)
    _require_whole_layers(kind, values)
    try:
        with quiet():
            return CONFIG_MAPPING[kind].from_dict(_without_code(values))
    except (*_BUILD, StrictDataclassError) as error:
        raise UnsupportedModel(f"{kind}: transformers cannot read this config ({first_line(error)})") from error


def _require_whole_layers(kind: str, values: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for layers that differ in what a network would be built without."""
    for one in (values, *(inner for inner in values.values() if isinstance(inner, dict))):
        differing = one.get("per_layer_config")
        if not differing:
            continue
        layers = differing.values() if isinstance(differing, dict) else [None]
        if any(not isinstance(layer, dict) or "skip" in layer for layer in layers):
            raise UnsupportedModel(f"{kind}: its layers differ in a way that is not understood (per_layer_config)")


def _without_code(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what names code that would be fetched and run, such as kernels of the hub, and without private fields."""
    return {
        name: _without_code(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if not (
            str(name).startswith("_") or re.search("implementation|auto_map|kernel|^allow_global_per_layer", str(name))
        )
        or re.search("conv_kernel|kernel_size|kernel_dim", str(name))
    }


def require_modest(values: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for numbers with which a network could not be built in a moment: nobody has such a model,
    and a config may be anybody's."""
    waiting: list[tuple[str, Any]] = [*values.items()]
    layers, experts = 1, 1
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value.items()]
        elif isinstance(value, list):
            waiting += [("", one) for one in value]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if not abs(value) < 1 << 40:
            raise UnsupportedModel(
                f"{str(name)[:40]}: no model has {value:.3g} of anything" if value < 1e300 else "no model is so large"
            )
        if re.search("^$|labels", str(name)) and value > _MOST_NAMED:  # configs make lists as long as these
            raise UnsupportedModel(f"{str(name)[:40] or 'a list'}: no model has {value:.3g} of these")
        if re.search("layer|depth|block", str(name)) and value > layers:
            layers = int(value)
        if "expert" in str(name) and not re.search("size|dim|hidden", str(name)) and value > experts:
            experts = int(value)
    if layers > _MOST_LAYERS or layers * experts > _MOST_EXPERTS:
        raise UnsupportedModel(f"no model has {layers} layers with {experts} experts")


def counted(config: Any) -> Counted:
    """Build and count. Raises UnsupportedModel where transformers has no such causal language model."""
    try:
        return _built(config)
    except (*_BUILD, StrictDataclassError) as error:
        raise UnsupportedModel(f"{config.model_type}: its network is not understood ({first_line(error)})") from error


def _built(config: Any) -> Counted:
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{config.model_type}: it has an encoder besides, whose part is not understood")
    found, config = causal_class(config)
    _allow_windows(config)
    stored = getattr(config, "quantization_config", None)
    if stored is not None:
        del config.quantization_config
    bits = None if stored is not None else _dtype_bits(config)  # before the network is made: that sets it
    network = skeleton(found, config, torch.bfloat16)
    return _counted(network, config, bits)


def _allow_windows(config: Any) -> None:
    """Let a network be built whose layers differ in their windows alone, which its tensors do not show."""
    if not getattr(config, "is_heterogeneous", False):
        return
    if config.per_layer_attributes <= _WINDOWS:
        config.allow_global_per_layer_attribute_access = True


def _counted(network: Any, config: Any, bits: int | None) -> Counted:
    layers = layers_of(network)
    kept = None if layers is None else kv_facts([one for parts in layers.values() for one in parts])
    reason = "its layers keep something that is not understood"
    values: dict[str, float | None] = dict(kept.values) if kept else {}
    why_not = dict(kept.why_not) if kept else dict.fromkeys(KV_SYMBOLS, reason)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    inner = network.get_input_embeddings().weight
    outer = network.get_output_embeddings()
    total = sum(parameter.numel() for parameter in network.parameters())
    if tied and outer is not None and outer.weight is not inner:
        total -= outer.weight.numel()
    rows = _row_tables(network, inner if tied else None)
    embedding = sum(rows.values())
    head = 0 if outer is None else outer.weight.numel()
    values |= {"parameters": total, "native_context": getattr(config, "max_position_embeddings", None)}
    why_not["native_context"] = "the config does not say max_position_embeddings"
    experts, one = _experts(network, config, why_not)
    values |= experts
    values |= _by_use(total, embedding, head, experts, one or 0)
    return Counted(
        config.model_type,
        values,
        why_not,
        kept.page_bits if kept else None,
        one,
        frozenset(rows),
        config.num_hidden_layers,
        bits,
    )


def _row_tables(network: Any, output: Any) -> dict[str, int]:
    """Parameters of tables of which a token takes a row, by their modules' last names; without the output's."""
    found: dict[str, int] = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Embedding) and module.weight is not output:
            last = name.rpartition(".")[2]
            found[last] = found.get(last, 0) + module.weight.numel()
    return found


def _by_use(
    total: int, embedding: int, head: int, experts: Mapping[str, float | None], one: float
) -> dict[str, float | None]:
    """Parameters outside of the experts, and those that a token is multiplied with; none where experts are unknown.
    embedding, head: parameters of tables of rows and of the output's; one: of one expert."""
    layers, n_experts, chosen = (experts[name] for name in ("moe_layers", "experts", "experts_per_token"))
    if layers is None or n_experts is None or chosen is None:
        return {}
    resident = total - layers * n_experts * one
    active = resident - embedding + layers * chosen * one
    found = {"resident_parameters": resident, "steady_parameters": resident - embedding}
    return {**found, "active_parameters": active, "reading_parameters": active - head}


def _experts(network: Any, config: Any, why_not: dict[str, str]) -> tuple[dict[str, float | None], float | None]:
    """Values of the symbols of experts, and the parameters of one."""
    modules = [module for module in network.modules() if is_experts(module)]
    has_some = any((getattr(config, name, None) or 0) > 1 for name in _COUNTS)
    unknown: dict[str, float | None] = dict.fromkeys(_NO_EXPERTS)
    related = (*_NO_EXPERTS, *_OF_TOKENS)
    if not modules and not has_some:
        return dict(_NO_EXPERTS), None
    sizes = {
        (module.num_experts, sum(_numel(one.shape) for one in expert_parameters(module).values())) for module in modules
    }
    chosen = next((value for name in _PER_TOKEN if isinstance(value := getattr(config, name, None), int)), None)
    if len(sizes) != 1:
        why_not |= dict.fromkeys(related, "its experts are none that are understood, or differ between layers")
        return unknown, None
    ((n_experts, size),) = sizes
    if chosen is None:
        why_not |= dict.fromkeys(("experts_per_token", *_OF_TOKENS), "the config does not say")
    values: dict[str, float | None] = {"moe_layers": len(modules), "experts": n_experts, "experts_per_token": chosen}
    return {**values, "expert_bytes": None}, size


def _numel(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _dtype_bits(config: Any) -> int | None:
    dtype = getattr(config, "dtype", None)
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype.removeprefix("torch."), None)
    return 8 * dtype.itemsize if isinstance(dtype, torch.dtype) else None
