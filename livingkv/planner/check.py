"""Checking a plan: everything that follows is computed anew from its inputs, and whatever differs is told.

A plan is data of anybody's. Nothing in it is evaluated: formulas are ours, its own are only compared. Knows documents;
answers a list of errors, one line each, and never raises for what stands in one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from livingkv.errors import InputError, LivingKVError
from livingkv.planner.comparing import MOST_ERRORS, compared, shown
from livingkv.planner.fact import MODEL_SYMBOLS, ModelFacts
from livingkv.planner.inputs import FIXED, KV_BITS_OF_8, MEASURABLE, Input, Inputs, Stamp, inputs_of, is_price
from livingkv.planner.laws import laws
from livingkv.planner.plan import VERSION, plan_of
from livingkv.planner.units import Amount

MOST_BYTES = 1 << 20
_PARTS = ("version", "model", "inputs", "prices", "calculations", "shortage", "remarks", "verdicts")
_INPUT = ("kind", "value", "unit", "source")
_PRICE = ("symbol", "value", "unit", "currency", "date", "region", "source")
_MOST_TEXT = 500


class _Wrong(Exception):
    """What is wrong, on one line."""


def check_bytes(data: bytes, model: ModelFacts | None = None) -> list[str]:
    """As `check_plan`, for a file's bytes."""
    if len(data) > MOST_BYTES:
        return [f"it has {len(data):,} bytes: a plan has at most {MOST_BYTES:,}"]
    try:
        document = json.loads(data, object_pairs_hook=_without_doubles, parse_constant=_no_number, parse_int=_whole)
    except _Wrong as error:
        return [str(error)]
    except RecursionError:
        return ["it is nested too deep"]
    except ValueError as error:
        return [f"it is not JSON ({' '.join(str(error).split())[:200]})"]
    return check_plan(document, model)


def check_plan(document: Any, model: ModelFacts | None = None) -> list[str]:
    """Everything that is wrong, none where the plan is right. model: the facts of the model that it names, where they
    are at hand: then what it says of the model is compared, and nothing that is known may be called unknown."""
    try:
        errors = list(_errors(document, model))
    except _Wrong as error:
        errors = [str(error)]
    except LivingKVError as error:
        errors = [" ".join(str(error).split())]
    return errors[:MOST_ERRORS]


def _errors(document: Any, model: ModelFacts | None) -> Iterator[str]:
    parts = _object(document, "the plan", _PARTS)
    if parts["version"] != VERSION or isinstance(parts["version"], bool):
        raise _Wrong(f"version: {shown(parts['version'])}, and this is livingkv's version {VERSION}")
    head = _object(parts["model"], "model", ("name", "type"))
    name, kind = (_text(head[key], f"model.{key}") for key in ("name", "type"))
    stated = _object(parts["inputs"], "inputs", tuple(laws().symbols))
    inputs = {symbol: _input(symbol, one) for symbol, one in stated.items()}
    stamps = _stamps(parts["prices"], inputs)
    first = next(iter(stamps.values()), None)
    for symbol, one in inputs.items():
        if one.amount is not None and is_price(symbol) and symbol not in stamps:
            yield f"prices: {symbol} has a value, and no date, region and source"
    again = plan_of(Inputs(name, kind, inputs, first))
    for part in ("calculations", "shortage", "remarks", "verdicts"):
        yield from compared(part, parts[part], again[part])
    if model is not None:
        yield from _against_model(Inputs(name, kind, inputs, first), model)


def _against_model(stated: Inputs, model: ModelFacts) -> Iterator[str]:
    """What a plan says of its model, and what is known of it."""
    if (stated.name, stated.kind) != (model.name, model.kind):
        told = f"{shown(stated.name)} ({shown(stated.kind)})"
        yield f"model: the plan is for {told}, and this is {model.name} ({model.kind})"
        return
    given = {name: one.amount for name, one in stated.inputs.items() if one.kind == "given" and one.amount is not None}
    known = inputs_of(model, {name: one for name, one in given.items() if not is_price(name)})
    for name in (*MODEL_SYMBOLS, "kv_bits"):
        own, real = stated.inputs[name], known.inputs[name]
        if own.kind == "given":
            continue
        if own.kind == "unknown" and real.amount is not None:
            yield f"inputs.{name}: it is called unknown, and the model says {real.amount.value:g} {real.amount.unit}"
        elif own.amount is not None and real.amount is None:
            yield f"inputs.{name}: the model does not say it ({real.source})"
        elif own.amount is not None and real.amount is not None and not _near(own.amount.value, real.amount.value):
            told = f"{own.amount.value:g} is stated, and the model says {real.amount.value:g}"
            yield f"inputs.{name}: {told} {real.amount.unit}"


def _input(symbol: str, one: Any) -> Input:
    where = f"inputs.{symbol}"
    fields = _object(one, where, _INPUT)
    source = _text(fields["source"], f"{where}.source")
    kind = fields["kind"]
    if kind == "unknown":
        if fields["value"] is not None or fields["unit"] is not None:
            raise _Wrong(f"{where}: it is called unknown, and has a value or a unit")
        return Input("unknown", None, source)
    amount = laws().symbols[symbol].checked(_amount(fields, where))
    if kind == "given":
        return Input("given", amount, source)
    if kind == "measured" and symbol in MEASURABLE:
        return Input("measured", amount, source)
    if kind == "model" and (symbol in MODEL_SYMBOLS or symbol == "kv_bits"):
        return Input("model", amount, source)
    if kind == "fixed" and (symbol in FIXED or symbol == "kv_bits"):
        value = KV_BITS_OF_8 if symbol == "kv_bits" else FIXED[symbol][0]
        if not _near(amount.value, value):
            raise _Wrong(f"{where}: it is called fixed, and that is {value:g} {amount.unit}")
        return Input("fixed", amount, source)
    raise _Wrong(f"{where}.kind: {shown(kind)} is not what {symbol} can be")


def _stamps(prices: Any, inputs: Mapping[str, Input]) -> dict[str, Stamp]:
    """By symbol. Raises _Wrong, or InputError for a date that is none."""
    if not isinstance(prices, list):
        raise _Wrong("prices: a list is expected")
    found: dict[str, Stamp] = {}
    for number, one in enumerate(prices):
        where = f"prices[{number}]"
        fields = _object(one, where, _PRICE)
        symbol = fields["symbol"]
        if not isinstance(symbol, str) or symbol not in inputs or not is_price(symbol):
            raise _Wrong(f"{where}.symbol: {shown(symbol)} is no price")
        if symbol in found:
            raise _Wrong(f"{where}: {symbol} is there twice")
        amount, own = laws().symbols[symbol].checked(_amount(fields, where)), inputs[symbol].amount
        if own is None or not _near(amount.value, own.value):
            raise _Wrong(f"{where}: {symbol} is {amount.value:g} here, and something else among the inputs")
        found[symbol] = Stamp(*(fields[key] for key in ("date", "region", "source", "currency")))
    if len({one.currency for one in found.values()}) > 1:
        raise _Wrong("prices: they are in several currencies, which are not added")
    return found


def _amount(fields: Mapping[str, Any], where: str) -> Amount:
    value, unit = fields["value"], _text(fields["unit"], f"{where}.unit")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Wrong(f"{where}.value: {shown(value)} is no number")
    if (isinstance(value, int) and abs(value) >= 1 << 80) or not math.isfinite(value):
        raise _Wrong(f"{where}.value: it is too large")
    try:
        return Amount(float(value), unit).to(unit)
    except InputError as error:
        raise _Wrong(f"{where}.unit: {error}") from error


def _object(value: Any, where: str, names: Sequence[str]) -> dict[str, Any]:
    """An object with exactly those names."""
    if not isinstance(value, dict):
        raise _Wrong(f"{where}: an object is expected")
    for name in names:
        if name not in value:
            raise _Wrong(f"{where}: {name} is missing")
    for name in value:
        if name not in names:
            raise _Wrong(f"{where}: {shown(name)} does not belong there")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_TEXT or not value.isprintable():
        raise _Wrong(f"{where}: a text of 1 to {_MOST_TEXT} characters is expected")
    return value


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-12)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Wrong(f"{shown(name)} is there twice in one object")
        found[name] = value
    return found


def _no_number(text: str) -> Any:
    raise _Wrong(f"{text} is no number")


def _whole(text: str) -> int:
    if len(text) > 40:
        raise _Wrong(f"a number of {len(text)} digits is too large")
    return int(text)
