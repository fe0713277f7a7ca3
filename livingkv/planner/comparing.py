"""Two JSON documents side by side: what is stated, and what follows. Numbers may differ by 0.1%.

Lists of named things are compared by name, whatever their order. Knows JSON and units; knows no law.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from livingkv.errors import InputError
from livingkv.planner.units import Amount

TOLERANCE = 1e-3
MOST_ERRORS = 100
_NAMES = ("law", "path", "symbol")


def compared(where: str, stated: Any, real: Any) -> Iterator[str]:
    """One line for each difference."""
    if isinstance(real, dict):
        yield from _objects(where, stated, real)
    elif isinstance(real, list):
        yield from _lists(where, stated, real)
    elif isinstance(real, (int, float)) and not isinstance(real, bool):
        if not _is_number(stated) or not _near(stated, real):
            yield f"{where}: {shown(stated)} is stated, {real:g} follows"
    elif stated != real or type(stated) is not type(real):
        yield f"{where}: {shown(stated)} is stated, {shown(real)} follows"


def shown(value: Any) -> str:
    """A value of somebody's, on one line and not long."""
    if isinstance(value, (dict, list)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 80:
        return "a number that is too large"
    text = ascii(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _objects(where: str, stated: Any, real: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(stated, dict):
        yield f"{where}: {shown(stated)} is stated, an object follows"
        return
    for name in real:
        if name not in stated:
            yield f"{where}: {name} is missing"
    for name in stated:
        if name not in real:
            yield f"{where}: {shown(name)} does not belong there"
    as_amounts = {"value", "unit"} <= stated.keys() and _same_amount(stated, real)
    for name in real.keys() & stated.keys():
        if not (as_amounts and name in ("value", "unit")):
            yield from compared(f"{where}.{name}", stated[name], real[name])


def _same_amount(stated: Mapping[str, Any], real: Mapping[str, Any]) -> bool:
    """Whether they are the same amount, perhaps in other units."""
    value, unit = stated["value"], stated["unit"]
    if not _is_number(value) or not _is_number(real.get("value")) or not isinstance(unit, str):
        return False
    if unit == real["unit"]:
        return _near(value, real["value"])
    try:
        return _near(Amount(float(value), unit).to(real["unit"]).value, real["value"])
    except InputError:
        return False


def _lists(where: str, stated: Any, real: list[Any]) -> Iterator[str]:
    if not isinstance(stated, list):
        yield f"{where}: {shown(stated)} is stated, a list follows"
        return
    key = next((name for name in _NAMES if real and isinstance(real[0], dict) and name in real[0]), None)
    if key is None:
        if stated != real:
            told, follows = (", ".join(map(shown, each)) or "nothing" for each in (stated, real))
            yield f"{where}: {told} is stated, {follows} follows"
        return
    left: dict[str, Any] = {}
    for one in stated:
        name = one.get(key) if isinstance(one, dict) else None
        if not isinstance(name, str):
            yield f"{where}: an object without a {key} is among them"
        elif name in left:
            yield f"{where}: {shown(name)} is there twice"
        else:
            left[name] = one
    wanted = {one[key]: one for one in real}
    for name in wanted:
        if name in left:
            yield from compared(f"{where}.{name}", left[name], wanted[name])
        else:
            yield f"{where}: {name} is missing"
    for name in left:
        if name not in wanted:
            yield f"{where}: there is no {key} {shown(name)}"


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1 << 80 if isinstance(value, int) else math.isfinite(value)


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-12)
