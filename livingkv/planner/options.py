"""How each symbol is given on the command line and over HTTP: the option's name, and what a person writes in it.

Knows symbols; knows no command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from livingkv.errors import InputError
from livingkv.planner.laws import laws
from livingkv.planner.units import Amount, amount_in

CLOUD = "cloud_allowed"
"""Given as a yes or no."""
_FEWEST_BYTES = 1_000_000
"""Of a memory, a drive or their speed: fewer, written without a unit, are a slip."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `flag` sets `symbol`, in `unit` where no other is written."""

    symbol: str
    flag: str
    unit: str
    says: str


def options() -> tuple[Option, ...]:
    """Of all symbols that have one, in their order; without CLOUD."""
    found = []
    for symbol in laws().symbols.values():
        flag = symbol.supply.split()[0].rstrip(",")
        if flag.startswith("--") and symbol.name != CLOUD:
            found.append(Option(symbol.name, flag, symbol.unit, symbol.says))
    return tuple(found)


def amounts_of(written: Mapping[str, str | float | bool]) -> dict[str, Amount]:
    """By symbol, of texts or plain numbers. Raises InputError that names the symbol, or its option where it has one."""
    symbols, flags = laws().symbols, {one.symbol: one.flag for one in options()}
    found = {}
    for name, value in written.items():
        if name not in symbols:
            raise InputError(repr(name)[:60], "a value", "a symbol of the laws is allowed here")
        if isinstance(value, bool):
            if name != CLOUD:
                raise InputError(name, value, f"a number, or a text such as 3 {symbols[name].unit}, is allowed")
            value = int(value)
        if isinstance(value, str) and _lacks_unit(value, symbols[name].unit):
            told = "a unit is needed: 8G or 8GiB, 500GB, 8.2GB/s"
            raise InputError(flags.get(name, name), repr(value)[:40], told)
        try:
            given = (
                amount_in(value, symbols[name].unit)
                if isinstance(value, str)
                else Amount(float(value), symbols[name].unit)
            )
            found[name] = symbols[name].checked(given)
        except (InputError, OverflowError) as error:
            allowed = error.allowed if isinstance(error, InputError) else "a smaller number is allowed"
            raise InputError(flags.get(name, name), repr(value)[:40], allowed) from error
    return found


def _lacks_unit(text: str, unit: str) -> bool:
    """Whether a bare number is written where a size or a speed of some bytes would be a slip: 8 for 8 GiB."""
    sized = unit in ("byte", "byte/second", "byte/device")
    return sized and text.strip().isdecimal() and 0 < int(text.strip()[:7]) < _FEWEST_BYTES
