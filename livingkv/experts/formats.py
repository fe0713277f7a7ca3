"""How the bytes of an expert become tensors, and how one expert computes with them.

A format is what the stored parts of an expert are: plain numbers, or codes and scales (`coded_format.py`). The one that
is here is plain numbers of the types that torch computes with. Knows tensors; refuses to know where bytes come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from livingkv.errors import UnsupportedModel
from livingkv.experts.eager_probe import Probe
from livingkv.experts.index import LayerIndex
from livingkv.experts.skeleton import ExpertModule, Parameter

TORCH_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types that a slot's bytes can be viewed as, by safetensors' names."""

_PLAIN = {"F64", "F32", "F16", "BF16"}


class Format(Protocol):
    """One way of storing experts."""

    @property
    def name(self) -> str:
        """What it is called in errors."""

    def reads(self, layer: LayerIndex, module: ExpertModule) -> str | None:
        """None if the layer is stored in this format, else what speaks against it, in a few words."""

    def fitted(self, module: Any, parameters: Mapping[str, Parameter], device: torch.device) -> Format:
        """The format as it computes for that experts module of the network, which holds no weights of experts.

        Raises UnsupportedModel where the result would not be that of the model's own eager code.
        """

    def sum_dtype(self, hidden: torch.dtype, weights: torch.dtype) -> torch.dtype:
        """The type in which eager code adds up outputs of experts, by the types of hidden states and router weights."""

    def forward(self, module: Any, hidden: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """One expert's output without the router's weight: [tokens, hidden] to [tokens, hidden].

        module: the network's experts module, which holds no weights of experts. tensors: views of the row's slots by
        parameter, on the device of `hidden`; they are only valid during the call.
        """

    def weigh(self, output: Tensor, weights: Tensor) -> Tensor:
        """An expert's output [tokens, hidden] times the router's weights [tokens, 1], as eager code multiplies them."""


class SumType(Enum):
    """In which type eager code adds up: that of the hidden states, that of the router's weights, or fp32."""

    HIDDEN = auto()
    WEIGHTS = auto()
    FLOAT32 = auto()


@dataclass(frozen=True, slots=True)
class PlainFormat:
    """A Format of floating-point weights, bit for bit as transformers' eager code computes with them."""

    sum_type: SumType = SumType.HIDDEN
    name: str = "plain"

    def reads(self, layer: LayerIndex, module: ExpertModule) -> str | None:
        """See Format."""
        for slot in layer.slots:
            if slot.is_coded:
                return f"{slot.tensor.partition('.')[0]} is stored as codes"
            if slot.tensor not in module.parameters:
                return f"{slot.tensor} is more than plain numbers need"
            if slot.dtype not in _PLAIN:
                return f"{slot.tensor} is stored as {slot.dtype}"
            if slot.shape != module.parameters[slot.tensor].shape:
                return f"{slot.tensor} has the shape {slot.shape}, not {module.parameters[slot.tensor].shape}"
        return None

    def fitted(self, module: Any, parameters: Mapping[str, Parameter], device: torch.device) -> Format:
        """See Format. Compares a few random experts with the module's own code, for every way of adding up."""
        probe = Probe(module, parameters, device)
        for sum_type in SumType:
            form = PlainFormat(sum_type)
            if probe.agrees(partial(form.forward, module), form.sum_dtype):
                return form
        kind = type(module).__name__
        raise UnsupportedModel(f"{kind}: its eager code computes experts in a way that streaming does not reproduce")

    def sum_dtype(self, hidden: torch.dtype, weights: torch.dtype) -> torch.dtype:
        """See Format."""
        return {SumType.HIDDEN: hidden, SumType.WEIGHTS: weights, SumType.FLOAT32: torch.float32}[self.sum_type]

    def forward(self, module: Any, hidden: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """See Format. Weights stored in another type than that of `hidden` are converted for this call."""
        return computed(module, hidden, partial(projected, module, tensors))

    def weigh(self, output: Tensor, weights: Tensor) -> Tensor:
        """See Format."""
        return output * weights


def computed(module: Any, hidden: Tensor, project: Callable[[str, Tensor], Tensor]) -> Tensor:
    """One expert's output from its products: `project` gives that of a parameter, by name, with the tensor given."""
    between = project("gate_up_proj" if module.has_gate else "up_proj", hidden)
    between = module._apply_gate(between) if module.has_gate else module.act_fn(between)
    out = project("down_proj", between)
    return module.post_expert_norm(out) if getattr(module, "has_post_expert_norm", False) else out


def projected(module: Any, tensors: Mapping[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    """The product with a parameter that is plain numbers, as eager code computes it."""
    weight = tensors[name].to(hidden.dtype)
    if not module.is_transposed:
        return linear(hidden, weight)
    return with_bias(module, tensors, name, hidden @ weight)


def with_bias(module: Any, tensors: Mapping[str, Tensor], name: str, product: Tensor) -> Tensor:
    """A product of a module with transposed matrices, with its bias where there is one."""
    return product + tensors[f"{name}_bias"].to(product.dtype) if module.has_bias else product


def format_of(layer: LayerIndex, module: ExpertModule, formats: tuple[Format, ...]) -> Format:
    """The first format that reads a layer. UnsupportedModel, with every format's reason, where none does."""
    reasons = []
    for one in formats:
        reason = one.reads(layer, module)
        if reason is None:
            return one
        reasons.append(f"{one.name}: {reason}")
    raise UnsupportedModel(
        f"{layer.module}: its experts are stored in a way that cannot be read ({'; '.join(reasons)})"
    )
