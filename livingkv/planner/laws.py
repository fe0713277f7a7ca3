"""The laws as data: what is computed, from what, in which unit (laws.json), and how one is applied.

Knows formulas and units; knows no model and no machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from livingkv.errors import InputError
from livingkv.planner.formula import evaluate, names_in
from livingkv.planner.units import Amount, amount

COMPARED = (">", ">=", "<", "<=")
_MOST = 1e24
"""Of anything: more is a slip, and its products would be no numbers."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """What is given, not computed: `supply` says how, for a person who lacks it."""

    name: str
    unit: str
    says: str
    supply: str
    lo: float = 0.0
    hi: float = _MOST

    def checked(self, given: Amount) -> Amount:
        """The amount in the symbol's own unit. Raises InputError for another kind and a number out of range."""
        own = given.to(self.unit)
        if not self.lo <= own.value <= self.hi:
            raise InputError(
                self.name, f"{given.value:g} {given.unit}", f"{self.lo:g} to {self.hi:g} {self.unit} is allowed"
            )
        return own


@dataclass(frozen=True, slots=True)
class Law:
    """when: (left, operator, right) of formulas; where it does not hold, the law's value is infinity."""

    name: str
    unit: str
    formula: str
    says: str
    when: tuple[str, str, str] | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of what it is computed from, constants included."""
        sides = () if self.when is None else (self.when[0], self.when[2])
        return tuple(dict.fromkeys(name for text in (self.formula, *sides) for name in names_in(text)))

    def apply(self, given: Mapping[str, Amount]) -> Amount:
        """Its value for these amounts. Raises InputError where one is missing or of another kind."""
        names = {name: one.quantity() for name, one in {**laws().constants, **given}.items() if name in self.needs}
        missing = [name for name in self.needs if name not in names]
        if missing:
            raise InputError(self.name, f"no {missing[0]}", f"it is computed from {', '.join(self.needs)}")
        if self.when is not None and not holds(*self.when, names=given):
            return Amount(float("inf"), self.unit)
        return amount(evaluate(self.formula, names), self.unit)


@dataclass(frozen=True, slots=True)
class Laws:
    """Everything that laws.json holds. laws come in an order in which each needs earlier ones only."""

    symbols: Mapping[str, Symbol]
    laws: Mapping[str, Law]
    constants: Mapping[str, Amount]


def holds(left: str, operator: str, right: str, *, names: Mapping[str, Amount]) -> bool:
    """Whether an inequality of two formulas is true. Raises InputError as `evaluate` does, or for another operator."""
    if operator not in COMPARED:
        raise InputError("operator", operator, f"one of {' '.join(COMPARED)} is allowed")
    known = {name: one.quantity() for name, one in {**laws().constants, **names}.items()}
    difference = evaluate(f"({left}) - ({right})", known)
    size = float(getattr(difference, "magnitude", difference))
    return {">": size > 0, ">=": size >= 0, "<": size < 0, "<=": size <= 0}[operator]


@cache
def laws() -> Laws:
    """The laws of this version of livingkv."""
    data = json.loads(files("livingkv.planner").joinpath("laws.json").read_text("utf-8"))
    symbols = {name: Symbol(name, *rest, *data["ranges"].get(name, ())) for name, rest in data["symbols"].items()}
    found = {
        row["id"]: Law(
            row["id"], row["unit"], row["formula"], row["says"], tuple(row["when"]) if "when" in row else None
        )
        for row in data["laws"]
    }
    return Laws(symbols, found, {name: Amount(*rest) for name, rest in data["constants"].items()})
