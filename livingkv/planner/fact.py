"""What is known of a model, each number with where it comes from; what is not known, with what to supply.

Knows numbers and their sources; knows no file and no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from livingkv.planner.laws import laws
from livingkv.planner.units import Amount

MODEL_SYMBOLS = (
    "parameters",
    "active_parameters",
    "resident_parameters",
    "steady_parameters",
    "reading_parameters",
    "weight_bits",
    "resident_bits",
    "steady_bits",
    "kv_elements",
    "bounded_elements",
    "sliding_window",
    "wider_elements",
    "wider_window",
    "state_bytes",
    "native_context",
    "moe_layers",
    "experts",
    "experts_per_token",
    "expert_bytes",
)
"""What a model says of itself."""

KV_SYMBOLS = ("kv_elements", "bounded_elements", "sliding_window", "wider_elements", "wider_window", "state_bytes")
"""Of these, what its layers keep."""


@dataclass(frozen=True, slots=True)
class Fact:
    """amount: None where it is unknown; then `source` says why."""

    amount: Amount | None
    source: str


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """facts: one for each of MODEL_SYMBOLS. expert_parameters: of one expert. page_bits: of an element in livingkv's
    8-bit pages, None where livingkv could not store this KV. remarks: what a reader should know besides."""

    name: str
    kind: str
    facts: Mapping[str, Fact]
    page_bits: float | None = None
    expert_parameters: float | None = None
    remarks: tuple[str, ...] = field(default=())


def facts_of(
    values: Mapping[str, float | None], source: str, why_not: Mapping[str, str] | None = None
) -> dict[str, Fact]:
    """A fact for each of MODEL_SYMBOLS; those that are missing, None or out of range are unknown."""
    symbols, reasons = laws().symbols, why_not or {}
    found = {}
    for name in MODEL_SYMBOLS:
        value = values.get(name)
        if value is None:
            found[name] = Fact(None, reasons.get(name, "not found"))
        elif not symbols[name].lo <= value <= symbols[name].hi:
            found[name] = Fact(None, f"it is said to be {value:g}, which cannot be")
        else:
            found[name] = Fact(Amount(float(value), symbols[name].unit), source)
    return found


def with_bits(model: ModelFacts, bits: Amount) -> ModelFacts:
    """The same model with all of its weights in so many bits."""
    source = "--weight-bits"
    changed = {name: Fact(bits, source) for name in ("weight_bits", "resident_bits", "steady_bits")}
    experts = model.facts["experts"].amount
    if model.expert_parameters is not None:
        size = Amount(model.expert_parameters * bits.value / 8, laws().symbols["expert_bytes"].unit)
        changed["expert_bytes"] = Fact(size, f"parameters of an expert, and {source}")
    elif experts is None or experts.value > 0:
        changed["expert_bytes"] = Fact(None, "parameters of an expert are not known")
    return ModelFacts(
        model.name, model.kind, {**model.facts, **changed}, model.page_bits, model.expert_parameters, model.remarks
    )
