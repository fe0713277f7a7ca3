"""Numbers with units: what a plan is made of, and how they are written in JSON.

pint computes with units that are defined here. Knows no law.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from livingkv.errors import InputError

_OURS = ("token", "parameter", "element", "expert", "layer", "flop", "user", "sentence", "device", "money", "pay_month")
"""Counted things. A pay_month is a month that is paid for: so many days, as given, not a 12th of a year."""

_DECIMAL, _BINARY = ("kilo", "mega", "giga", "tera", "peta"), ("kibi", "mebi", "gibi", "tebi", "pebi")
_PREFIXES = (
    *(
        f"{name}- = 1e{3 * power} = {letter}-"
        for power, (name, letter) in enumerate(zip(_DECIMAL, "kMGTP", strict=True), 1)
    ),
    *(
        f"{name}- = {2 ** (10 * power)} = {letter}i-"
        for power, (name, letter) in enumerate(zip(_BINARY, "KMGTP", strict=True), 1)
    ),
)
_BASE = (
    *("bit = [information]", "byte = 8 * bit = B", "second = [time] = s", "hour = 3600 * second", "day = 24 * hour"),
    *("watt = [power]", "kilowatt_hour = 1000 * watt * hour"),
)
_ALLOWED = "such as GiB, GB/s, token, byte/token is allowed"
_SHAPE = re.compile(r"[A-Za-z_]+(?: ?/ ?[A-Za-z_]+){0,3}")


_WRITTEN = re.compile(r"([0-9]{1,30}(?:\.[0-9]{0,20})?(?:e[+-]?[0-9]{1,2})?) *([A-Za-z_/ ]{0,40})")
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


@lru_cache(256)
def unit(text: str) -> Any:
    """The pint unit of that name. Raises InputError."""
    from pint.errors import PintError

    try:
        if _SHAPE.fullmatch(text):
            return _registry().Unit(text)
    except (PintError, ValueError, TypeError, AttributeError) as error:
        raise InputError("unit", repr(text[:40]), _ALLOWED) from error
    raise InputError("unit", repr(text[:40]), _ALLOWED)


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

    A number alone is in `wanted`; a share may be in percent, such as 35%. A letter alone, with or without B, counts
    binary where bytes are meant (8G is 8 GiB, as everywhere in livingkv), decimal elsewhere; GB and GB/s are 10^9.
    """
    if wanted == "dimensionless" and text.count("%") == 1 and text.rstrip().endswith("%"):
        return Amount(amount_in(text.replace("%", ""), wanted).value / 100, wanted)
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        raise InputError("amount", repr(text[:40]), f"a number with a unit such as {wanted} is allowed")
    number, written = float(found[1].replace("_", "")), found[2].strip()
    if written and written.upper() in _LETTERS:
        power = _LETTERS.index(written.upper()) + 1
        return Amount(number * (1024.0 if wanted.startswith("byte") else 1000.0) ** power, wanted)
    counted = wanted.partition("/")[2]
    if written and "/" not in written and counted.split("/")[0] in _OURS:  # 24GiB, where bytes of a device are meant
        written = f"{written}/{counted}"
    return Amount(number, written or wanted).to(wanted)


@cache
def _registry() -> Any:
    from pint import UnitRegistry

    registry: Any = UnitRegistry(None, cache_folder=None)  # none of pint's own: to it a bit is a number like any other
    for line in (*_PREFIXES, *_BASE, *(f"{name} = [{name}]" for name in _OURS)):
        registry.define(line)
    return registry
