"""Numbers with units: what a plan is made of, and how they are written in JSON.

Units are pint's, with those of this field added. Knows no law.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from livingkv.errors import InputError

_OURS = ("token", "parameter", "element", "expert", "layer", "flop", "user", "sentence", "device", "money", "pay_month")
"""Counted things. A pay_month is a month that is paid for: so many days, as given, not a 12th of a year."""

_WORDS = {
    *_OURS,
    *("dimensionless", "bit", "byte", "watt", "kilowatt_hour", "second", "s", "hour", "day"),
    *(f"{prefix}{name}" for prefix in ("", *"kKMGTP", *(f"{one}i" for one in "KMGTP")) for name in ("B", "b", "bit", "byte")),
    *(f"{prefix}flop" for prefix in "kMGTP"),
}
"""No others: some units of pint's have an origin of their own, and some texts take it long."""
_SHAPE = re.compile(r"[A-Za-z_]+(?: ?/ ?[A-Za-z_]+){0,3}")


_WRITTEN = re.compile(r"(\d{1,30}(?:\.\d{0,20})?(?:e[+-]?\d{1,2})?) *([A-Za-z_/ ]{0,40})")
_LETTERS = ("K", "M", "G", "T", "P")


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
    if not _SHAPE.fullmatch(text) or not {word.strip() for word in text.split("/")} <= _WORDS:
        raise InputError("unit", repr(text[:40]), "such as GiB, GB/s, token, byte/token is allowed")
    return _registry().Unit(text)


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


def amount_in(text: str, wanted: str) -> Amount:
    """An amount as people write it, in the unit `wanted`: 8G, 24GiB, 500GB, 8.2GiB/s, 128k. Raises InputError.

    A number alone is in `wanted`. A letter alone, with or without B, counts binary where bytes are meant (8G is 8 GiB,
    as everywhere in livingkv), decimal elsewhere; GB and GB/s are 10^9.
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        raise InputError("amount", repr(text[:40]), f"a number with a unit such as {wanted} is allowed")
    number, written = float(found[1].replace("_", "")), found[2].strip()
    if written and written.upper() in _LETTERS:
        power = _LETTERS.index(written.upper()) + 1
        return Amount(number * (1024.0 if wanted.startswith("byte") else 1000.0) ** power, wanted)
    return Amount(number, written or wanted).to(wanted)


@cache
def _registry() -> Any:
    from pint import UnitRegistry

    registry: Any = UnitRegistry(cache_folder=None)
    for name in _OURS:
        registry.define(f"{name} = [{name}]")
    return registry
