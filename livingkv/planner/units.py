"""Numbers with units: what a plan is made of, and how they are written in JSON.

Units are pint's, with those of this field added. Knows no law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from livingkv.errors import InputError

_OURS = ("token", "parameter", "element", "expert", "layer", "flop", "user", "sentence", "device", "money", "pay_month")
"""Counted things. A pay_month is a month that is paid for: so many days, as given, not a 12th of a year."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A number and its unit as pint writes it, such as 1.5 GiB, 3 byte/token, 4 bit/parameter. value: infinity is
    allowed, NaN is not."""

    value: float
    unit: str

    def quantity(self) -> Any:
        """As a pint quantity. Raises InputError for a unit that is none."""
        return self.value * unit(self.unit)

    def to(self, other: str) -> Amount:
        """In another unit of the same dimension. Raises InputError."""
        return amount(self.quantity(), other)


def unit(text: str) -> Any:
    """The pint unit of that name. Raises InputError."""
    from pint.errors import PintError

    try:
        return _registry().Unit(text)
    except (PintError, ValueError, TypeError, AttributeError, SyntaxError) as error:
        raise InputError("unit", text, "such as GiB, GB/s, token, byte/token is allowed") from error


def amount(quantity: Any, wanted: str) -> Amount:
    """A pint quantity, or a plain number, in the unit `wanted`. Raises InputError where the dimensions differ, or for
    NaN."""
    from pint.errors import DimensionalityError

    try:
        value = float((quantity * unit("dimensionless")).to(unit(wanted)).magnitude)
    except DimensionalityError as error:
        raise InputError("unit", f"{error.units1}", f"{wanted} is what is computed here") from error
    if math.isnan(value):
        raise InputError("value", "NaN", "a number is allowed")
    return Amount(value, wanted)


@cache
def _registry() -> Any:
    from pint import UnitRegistry

    registry: Any = UnitRegistry(cache_folder=None)
    for name in _OURS:
        registry.define(f"{name} = [{name}]")
    return registry
