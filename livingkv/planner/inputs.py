"""What a plan is computed from: facts of the model, what was given, what was measured here, what is fixed.

Knows where each number may come from; computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Literal

from livingkv.errors import InputError
from livingkv.planner.fact import MODEL_SYMBOLS, ModelFacts, with_bits
from livingkv.planner.laws import laws
from livingkv.planner.units import Amount

Kind = Literal["model", "given", "measured", "fixed", "unknown"]
KV_BITS_OF_8 = 8.5
"""Of an element in q8_0, where livingkv has no pages for the model's KV."""

FIXED: Mapping[str, tuple[float, str]] = {
    "users": (1, "one session at a time"),
    "hot_bits": (16, "the device window is in 16 bits"),
    "window": (4096, "the default of window_tokens"),
    "ram_pages": (1 << 28, "the default of ram_budget_bytes"),
    "index_bytes": (43.66, "measured: experiments/022_turn_latency, a store of 2,557,117 tokens without KV"),
    "cache_hit": (0, "as if memory held no expert"),
    "days_month": (30, "a month of 30 days"),
}
"""What holds where nothing else is given, and why."""

_WINDOWED = (("bounded_elements", "sliding_window"), ("wider_elements", "wider_window"))
"""Elements of layers with a window, and that window."""

MEASURABLE = ("vram", "ram", "disk", "bw_vram", "bw_ram", "bw_pcie", "bw_disk", "flops_device", "flops_cpu")


@dataclass(frozen=True, slots=True)
class Input:
    """amount: None exactly where kind is unknown; then source says why, and how to supply it."""

    kind: Kind
    amount: Amount | None
    source: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """When, where and by whom prices were asked. currency: three capital letters."""

    date: str
    region: str
    source: str
    currency: str

    def __post_init__(self) -> None:
        try:
            is_date = date.fromisoformat(self.date).isoformat() == self.date
        except (ValueError, TypeError):
            is_date = False
        if not is_date:
            raise InputError("priced", repr(self.date)[:40], "a date such as 2026-11-30 is needed with a price")
        for name in ("region", "source"):
            if not isinstance(text := getattr(self, name), str) or not 0 < len(text.strip()) <= 200:
                raise InputError("priced", repr(text)[:40], f"a {name} is needed with a price")
        code = self.currency
        if not (isinstance(code, str) and len(code) == 3 and code.isascii() and code.isalpha() and code.isupper()):
            raise InputError("currency", repr(self.currency)[:40], "three letters such as EUR are needed with a price")


@dataclass(frozen=True, slots=True)
class Inputs:
    """All symbols of the laws. stamp: there where a price was given."""

    name: str
    kind: str
    inputs: Mapping[str, Input]
    stamp: Stamp | None

    @property
    def known(self) -> dict[str, Amount]:
        """Amounts by symbol."""
        return {name: one.amount for name, one in self.inputs.items() if one.amount is not None}


def is_price(symbol: str) -> bool:
    """Whether a symbol is what somebody asks for something; budgets are wishes."""
    return laws().symbols[symbol].unit.startswith("money") and not symbol.startswith("budget")


def inputs_of(
    model: ModelFacts,
    given: Mapping[str, Amount],
    measured: Mapping[str, Amount] | None = None,
    stamp: Stamp | None = None,
) -> Inputs:
    """Bring everything together: what is given counts before what the model says, then what was measured, then what is
    fixed. Raises InputError for an unknown symbol, an amount of another kind or out of range, a price without stamp."""
    symbols = laws().symbols
    for name in given:
        if name not in symbols:
            raise InputError("symbol", repr(name)[:60], "a symbol of the laws is allowed")
    stated = {name: symbols[name].checked(one) for name, one in given.items()}
    if "weight_bits" in stated:
        model = with_bits(model, stated["weight_bits"])
    prices = [name for name in stated if is_price(name)]
    if prices and stamp is None:
        raise InputError(
            "priced", "nothing", f"{prices[0]} is a price: --priced DATE,REGION,SOURCE and --currency go with it"
        )
    active, parameters = stated.get("smaller_active"), stated.get("smaller_parameters")
    if active is not None and parameters is not None and active.value > parameters.value:
        raise InputError("--smaller-active-params", "more than --smaller-params", "at most as many are allowed")
    found = {name: _input(name, model, stated, measured or {}) for name in symbols}
    for elements, window in _WINDOWED:
        if found[elements].kind == "given" and found[window].kind == "model" and _value(found[window]) == 0:
            why = f"it has layers with a window, and the model says of none how large; supply {symbols[window].supply}"
            found[window] = Input("unknown", None, why)
    found["kv_bits"] = _kv_bits(model, stated.get("kv_bits"))
    return Inputs(model.name, model.kind, found, stamp if prices else None)


def _input(name: str, model: ModelFacts, given: Mapping[str, Amount], measured: Mapping[str, Amount]) -> Input:
    symbol = laws().symbols[name]
    if name in given:
        return Input("given", given[name], "given")
    if name in MODEL_SYMBOLS:
        fact = model.facts[name]
        if fact.amount is not None:
            return Input("model", symbol.checked(fact.amount), fact.source)
        return Input("unknown", None, f"{fact.source}; supply {symbol.supply}")
    if name in measured:
        return Input("measured", symbol.checked(measured[name]), "the last `livingkv probe` here")
    if name in FIXED:
        value, why = FIXED[name]
        return Input("fixed", Amount(float(value), symbol.unit), why)
    return Input("unknown", None, f"supply {symbol.supply}")


def _value(one: Input) -> float:
    assert one.amount is not None, "it is known"
    return one.amount.value


def _kv_bits(model: ModelFacts, given: Amount | None) -> Input:
    unit = laws().symbols["kv_bits"].unit
    if given is not None and given.value != 8:
        return Input("given", given, "given")
    if model.page_bits is not None:
        return Input("model", Amount(model.page_bits, unit), "livingkv's 8-bit pages of this model, scales included")
    return Input("fixed", Amount(KV_BITS_OF_8, unit), "q8_0, scales included: livingkv has no pages for this model")
