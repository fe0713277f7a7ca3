"""A network without memory (on the meta device): which of its modules are experts, and what their parameters are.

Knows transformers' model classes; refuses to know files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from livingkv.errors import UnsupportedModel
from livingkv.model_loading import first_line, quiet

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of one expert: its shape without the first dimension, which counts the experts."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class ExpertModule:
    """One layer's experts in the network. `name` is the module's path in it."""

    name: str
    n_experts: int
    parameters: dict[str, Parameter]


def causal_class(config: Any) -> tuple[type, Any]:
    """The class and config that transformers' AutoModelForCausalLM would take. UnsupportedModel where it has none."""
    from transformers import AutoModelForCausalLM

    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedModel(f"{config.model_type}: transformers has no causal language model of this type")
    found = AutoModelForCausalLM._model_mapping[type(config)]
    if isinstance(found, (tuple, list)):
        found = next((one for one in found if one.__name__ in (config.architectures or ())), found[0])
    if found.config_class == config.sub_configs.get("text_config"):  # the text part of a model with more senses
        config = config.get_text_config()
    return found, config


def skeleton(found: type, config: Any, dtype: torch.dtype) -> Any:
    """The network of that class, its tensors on the meta device. Raises UnsupportedModel where it cannot be built."""
    try:
        with quiet(), torch.device("meta"), torch.no_grad():
            return found._from_config(config, dtype=dtype)  # type: ignore[attr-defined]
    except (ValueError, RuntimeError, TypeError, AttributeError, KeyError, ImportError, NotImplementedError) as error:
        reason = first_line(error)
        raise UnsupportedModel(f"{config.model_type}: transformers cannot build the network ({reason})") from error


def is_experts(module: Any) -> bool:
    """Whether a module takes its computation from transformers' ExpertsInterface."""
    return all(
        hasattr(module, name) for name in ("_apply_gate", "has_gate", "has_bias", "num_experts", "is_transposed")
    )


def expert_parameters(module: Any) -> dict[str, Parameter]:
    """The parameters of an experts module that are a row for each expert."""
    return {
        name: Parameter(tuple(value.shape[1:]), value.dtype)
        for name, value in module.named_parameters(recurse=False)
        if value.shape[0] == module.num_experts
    }


def expert_modules(network: Any) -> list[ExpertModule]:
    """The experts of a network in the order of its layers. Raises UnsupportedModel where there are none."""
    found = [
        ExpertModule(name, module.num_experts, expert_parameters(module))
        for name, module in network.named_modules()
        if is_experts(module)
    ]
    if not found:
        raise UnsupportedModel(f"{type(network).__name__}: {_why_none(network.config)}")
    return found


def _why_none(config: Any) -> str:
    """Why a network has no experts that could be streamed."""
    if any(getattr(config, name, None) for name in _EXPERT_COUNTS):
        return "it has experts, but none that transformers' experts interface computes: it cannot be streamed"
    return "it has no experts, so that it is no mixture of them: load it without streaming"
