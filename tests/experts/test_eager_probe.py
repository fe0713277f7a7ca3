"""The probe tells how a model's eager experts add up, and refuses what streaming would not reproduce."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers.integrations.moe import use_experts_implementation

from livingkv.errors import UnsupportedModel
from livingkv.experts.formats import PlainFormat, SumType
from livingkv.experts.skeleton import Parameter, is_experts

HIDDEN, MIDDLE = 24, 40
CPU = torch.device("cpu")


class _Experts(nn.Module):
    """Eager experts that hold no weights, and add up in a type of their own."""

    sum_dtype: torch.dtype | None = None
    gate_up_proj: Any
    down_proj: Any

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.num_experts = 16
        self.act_fn = silu

    def combine(self, expert: Tensor, hidden: Tensor, weights: Tensor) -> Tensor:
        gate, up = linear(hidden, self.gate_up_proj[expert]).chunk(2, dim=-1)
        return linear(self.act_fn(gate) * up, self.down_proj[expert]) * weights

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(hidden, dtype=self.sum_dtype or hidden.dtype)
        mask = nn.functional.one_hot(chosen, self.num_experts).permute(2, 1, 0)
        for expert in mask.sum(dim=(-1, -2)).nonzero():
            rank, token = torch.where(mask[expert[0]])
            total.index_add_(
                0, token, self.combine(expert[0], hidden[token], weights[token, rank, None]).to(total.dtype)
            )
        return total.to(hidden.dtype)


class _Float32(_Experts):
    sum_dtype = torch.float32


class _WeightsFirst(_Experts):
    def combine(self, expert: Tensor, hidden: Tensor, weights: Tensor) -> Tensor:
        gate, up = linear(hidden, self.gate_up_proj[expert]).chunk(2, dim=-1)
        return linear(self.act_fn(gate) * up * weights.to(hidden.dtype), self.down_proj[expert])


class _AsksForTheShape(_Experts):
    def combine(self, expert: Tensor, hidden: Tensor, weights: Tensor) -> Tensor:
        assert self.gate_up_proj.shape
        return hidden


def fit(kind: type[nn.Module], dtype: torch.dtype) -> PlainFormat:
    """The plain format, fitted to experts of that kind."""
    decorated: Any = use_experts_implementation(type(kind.__name__, (kind,), {"__init__": kind.__init__}))
    module = decorated(SimpleNamespace(_experts_implementation="eager"))
    assert is_experts(module)
    shapes = {"gate_up_proj": (2 * MIDDLE, HIDDEN), "down_proj": (HIDDEN, MIDDLE)}
    form = PlainFormat().fitted(module, {name: Parameter(shape, dtype) for name, shape in shapes.items()}, CPU)
    assert not hasattr(module, "down_proj")
    assert isinstance(form, PlainFormat)
    return form


def test_the_way_of_adding_up_is_found() -> None:
    assert fit(_Experts, torch.bfloat16).sum_type is SumType.HIDDEN
    assert fit(_Float32, torch.bfloat16).sum_type is SumType.FLOAT32
    assert fit(_Float32, torch.float32).sum_type is SumType.HIDDEN  # the same thing there


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_order_of_products_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedModel, match="_WeightsFirst: its eager code computes experts in a way"):
        fit(_WeightsFirst, dtype)


def test_code_that_needs_whole_parameters_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="_AsksForTheShape: its eager code cannot be run without its weights"):
        fit(_AsksForTheShape, torch.float32)


def test_experts_of_other_parts_are_refused() -> None:
    decorated: Any = use_experts_implementation(_Experts)
    module = decorated(SimpleNamespace(_experts_implementation="eager"))
    with pytest.raises(UnsupportedModel, match="without a down_proj"):
        PlainFormat().fitted(module, {"w": Parameter((2, 2), torch.float32)}, CPU)
