"""Applying the laws to what is known: values where everything is there, else what would have to be supplied.

Knows laws and amounts; knows no model and no path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from livingkv.errors import InputError
from livingkv.planner.formula import evaluate, names_in
from livingkv.planner.laws import Law, laws
from livingkv.planner.units import Amount, amount


@dataclass(frozen=True, slots=True)
class Worked:
    """The result of one law. value: None where `lacking` symbols are unknown, or where there is none, and `why`."""

    law: Law
    value: Amount | None
    lacking: tuple[str, ...] = ()
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Working:
    """Everything that is known and that follows. given: amounts by symbol, in the symbols' units; unknown ones are not
    there."""

    given: Mapping[str, Amount]
    results: Mapping[str, Worked]

    def amount_of(self, name: str) -> Amount | None:
        """Of a symbol, a law or a constant; None where it is unknown."""
        if name in self.results:
            return self.results[name].value
        return self.given.get(name) or laws().constants.get(name)

    def lacking(self, formula: str) -> tuple[str, ...]:
        """The symbols that a formula cannot be computed without, in order; a law without a value for another reason
        is there by its own name."""
        found: list[str] = []
        for name in names_in(formula):
            if self.amount_of(name) is None:
                found += (self.results[name].lacking if name in self.results else ()) or (name,)
        return tuple(dict.fromkeys(found))

    def value(self, formula: str, unit: str) -> Amount | None:
        """None where something is unknown, or the result is no number. Raises InputError for units that do not fit."""
        names = {name: self.amount_of(name) for name in names_in(formula)}
        known = {name: one.quantity() for name, one in names.items() if one is not None}
        if len(known) < len(names):
            return None
        if any(math.isinf(one.value) for one in names.values() if one is not None) and len(names) > 1:
            return None
        return amount(evaluate(formula, known), unit)


def worked(given: Mapping[str, Amount]) -> Working:
    """All laws, in their order. given: in any unit of the right kind. Raises InputError for a name that is no symbol,
    and for an amount of another kind or out of range."""
    book = laws()
    unknown = sorted(set(given) - set(book.symbols))
    if unknown:
        raise InputError("symbol", unknown[0], "a symbol of the laws is allowed: see `livingkv plan --help`")
    known = {name: book.symbols[name].checked(one) for name, one in given.items()}
    results: dict[str, Worked] = {}
    for law in book.laws.values():
        results[law.name] = _apply(law, Working(known, results))
    return Working(known, results)


def _apply(law: Law, so_far: Working) -> Worked:
    lacking = _all_lacking(law.needs, so_far)
    if lacking:
        return Worked(law, None, lacking)
    names = {name: one for name in law.needs if (one := so_far.amount_of(name)) is not None}
    try:
        return Worked(law, law.apply(names))
    except InputError as error:
        if error.field == "unit":
            raise
        return Worked(law, None, (), f"{error.allowed}")


def _all_lacking(names: Iterable[str], so_far: Working) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for name in names for one in so_far.lacking(name)))
