"""JSON values to the dataclasses of answers.py, by their annotations.

Knows dataclasses and JSON; knows no answer in particular. What is missing or of another type raises UnexpectedAnswer,
which names the field and never the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from livingkv.client.errors import UnexpectedAnswer

T = TypeVar("T")


def decoded(body: bytes) -> Any:
    """The JSON value of a body."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnexpectedAnswer("the answer is not JSON: is this the address of a livingkv service?") from error


def parsed(kind: type[T], value: Any, place: str = "the answer") -> T:
    """`value` as an object of a dataclass. place: what an error calls it."""
    if not isinstance(value, dict):
        raise UnexpectedAnswer(f"{place}: an object is expected")
    known: Any = kind  # hashable as all classes are; mypy does not see it
    found: dict[str, Any] = {}
    for name, (annotation, is_needed) in _fields(known).items():
        if name in value:
            found[name] = _read(annotation, value[name], f"{place}: {name}")
        elif is_needed:
            raise UnexpectedAnswer(f"{place} has no {name}")
    return kind(**found)


def item(value: Any, name: str) -> Any:
    """A field of an object."""
    if not isinstance(value, dict) or name not in value:
        raise UnexpectedAnswer(f"the answer has no {name}")
    return value[name]


def each(kind: type[T], value: Any, name: str) -> tuple[T, ...]:
    """The objects in a list that is a field of `value`."""
    found = item(value, name)
    if not isinstance(found, list):
        raise UnexpectedAnswer(f"{name}: a list is expected")
    return tuple(parsed(kind, one, f"{name}[{index}]") for index, one in enumerate(found))


@cache
def _fields(kind: type[Any]) -> Mapping[str, tuple[Any, bool]]:
    hints = get_type_hints(kind)
    return {
        one.name: (hints[one.name], one.default is MISSING and one.default_factory is MISSING) for one in fields(kind)
    }


def _read(annotation: Any, value: Any, place: str) -> Any:
    if annotation is Any:
        return value
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return None if value is None else _read(next(one for one in arguments if one is not type(None)), value, place)
    if origin is tuple:
        return _read_tuple(arguments, value, place)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise UnexpectedAnswer(f"{place}: an object is expected")
        return {str(name): _read(arguments[1], one, f"{place}.{name}") for name, one in value.items()}
    if is_dataclass(annotation) and isinstance(annotation, type):
        return parsed(annotation, value, place)
    return _read_plain(annotation, value, place)


def _read_tuple(arguments: tuple[Any, ...], value: Any, place: str) -> tuple[Any, ...]:
    kinds = arguments[:1] * len(value) if isinstance(value, list) and arguments[-1] is Ellipsis else arguments
    if not isinstance(value, list) or len(value) != len(kinds):
        raise UnexpectedAnswer(f"{place}: a list is expected")
    return tuple(_read(kind, one, f"{place}[{at}]") for at, (kind, one) in enumerate(zip(kinds, value, strict=True)))


def _read_plain(annotation: Any, value: Any, place: str) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is float and is_number:
        return float(value)
    if annotation is int and is_number and value == int(value):
        return int(value)
    if annotation in (str, bool) and isinstance(value, annotation):
        return value
    raise UnexpectedAnswer(f"{place}: {annotation.__name__} is expected")
