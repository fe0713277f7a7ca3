"""The plan: everything that follows from a model and a situation, as one JSON document.

Version 1 of the document: docs/API.md. Infinity is the text "infinite", since JSON has none. Knows no prices, no
hardware and no model but what it is given.
"""

from __future__ import annotations

import math
from typing import Any

from livingkv.planner.inputs import Inputs, is_price
from livingkv.planner.laws import laws
from livingkv.planner.units import Amount
from livingkv.planner.verdicts import Tried, Verdict, remarks, shortage, verdicts
from livingkv.planner.working import Worked, Working, worked

VERSION = 1
INFINITE = "infinite"

Json = dict[str, Any]


def plan_of(inputs: Inputs) -> Json:
    """The document. Raises InputError for inputs whose units do not fit or that are out of range."""
    working = worked(inputs.known)
    return {
        "version": VERSION,
        "model": {"name": inputs.name, "type": inputs.kind},
        "inputs": {
            name: {"kind": one.kind, **_amount(one.amount), "source": one.source} for name, one in inputs.inputs.items()
        },
        "prices": _prices(inputs),
        "calculations": [_calculation(one) for one in working.results.values()],
        "shortage": _shortage(working),
        "remarks": [text for _, text in remarks(working)],
        "verdicts": [_verdict(one) for one in verdicts(working)],
    }


def _amount(one: Amount | None, unit: str | None = None) -> Json:
    return {"value": None if one is None else number(one.value), "unit": unit if one is None else one.unit}


def number(value: float) -> float | int | str:
    """As it stands in the document: whole numbers without a fraction."""
    if math.isinf(value):
        return INFINITE
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _prices(inputs: Inputs) -> list[Json]:
    stamp = inputs.stamp
    if stamp is None:
        return []
    return [
        {
            "symbol": name,
            **_amount(one.amount),
            "currency": stamp.currency,
            "date": stamp.date,
            "region": stamp.region,
            "source": stamp.source,
        }
        for name, one in inputs.inputs.items()
        if one.kind == "given" and is_price(name)
    ]


def _calculation(one: Worked) -> Json:
    return {
        "law": one.law.name,
        "says": one.law.says,
        "formula": one.law.formula,
        **_amount(one.value, one.law.unit),
        "lacking": list(one.lacking),
        "why": one.why,
    }


def _shortage(working: Working) -> Json | None:
    found = shortage(working)
    if found is None:
        return None
    one, need, has = found
    return {"what": one.id, "name": one.name, "need": _amount(need), "has": _amount(has)}


def _verdict(one: Verdict) -> Json:
    symbols = laws().symbols
    return {
        "path": one.path.id,
        "name": one.path.name,
        "verdict": one.answer,
        "way": one.way,
        "because": _because(one.deciding),
        "supply": [
            {"symbol": name, "how": symbols[name].supply if name in symbols else "it has no value here"}
            for name in one.supply
        ],
    }


def _because(one: Tried) -> Json:
    return {
        "test": one.test.text,
        "says": one.test.says,
        "left": _amount(one.left, one.test.unit),
        "right": _amount(one.right, one.test.unit),
        "holds": one.holds,
    }
