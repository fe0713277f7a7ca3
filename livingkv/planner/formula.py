"""Formulas as text over numbers with units, evaluated without eval.

Arithmetic, max, min, ceil and floor; names of quantities. simpleeval walks what was parsed and knows no more.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping
from functools import cache
from typing import Any

from livingkv.errors import InputError

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
_MOST_CHARACTERS = 400
_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, *_OPERATORS)


def evaluate(formula: str, names: Mapping[str, Any]) -> Any:
    """The value of `formula` with these pint quantities. Raises InputError: for units that do not fit, names that are
    not there, a division by zero and anything that is no arithmetic."""
    from pint.errors import DimensionalityError
    from simpleeval import InvalidExpression, SimpleEval

    if len(formula) > _MOST_CHARACTERS:
        raise InputError("formula", f"{len(formula)} characters", f"at most {_MOST_CHARACTERS} are allowed")
    functions = {"max": max, "min": min, "ceil": _ceil, "floor": _floor}
    evaluator = SimpleEval(operators=_OPERATORS, functions=functions, names=dict(names))
    evaluator.ATTR_INDEX_FALLBACK = False
    try:
        return evaluator.eval(formula, previously_parsed=_parsed(formula))
    except DimensionalityError as error:
        what = f"{error.units1} and {error.units2} in {formula!r}"
        raise InputError("unit", what, "only amounts of the same kind are added and compared") from error
    except ZeroDivisionError as error:
        raise InputError("formula", formula, "what it divides by is 0") from error
    except (
        InvalidExpression,
        ArithmeticError,
        SyntaxError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError("formula", formula, f"arithmetic over known names is allowed ({reason})") from error


@cache
def _parsed(formula: str) -> Any:
    from simpleeval import FeatureNotAvailable, SimpleEval

    for node in ast.walk(ast.parse(formula, mode="eval")):
        is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords
        if not (is_number or is_call or isinstance(node, _NODES)):
            raise FeatureNotAvailable(f"no {type(node).__name__}")
    return SimpleEval.parse(formula)


@cache
def names_in(formula: str) -> tuple[str, ...]:
    """The names a formula needs, in order of appearance, functions left out. Raises InputError."""
    try:
        tree = ast.parse(formula, mode="eval")
    except (SyntaxError, ValueError) as error:
        raise InputError("formula", formula, "one arithmetic expression is allowed") from error
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    return tuple(dict.fromkeys(node.id for node in found))


def _ceil(quantity: Any) -> Any:
    """Rounded up in the quantity's own unit, reduced."""
    reduced = quantity.to_reduced_units()
    return math.ceil(reduced.magnitude) * reduced.units


def _floor(quantity: Any) -> Any:
    """Rounded down in the quantity's own unit, reduced."""
    reduced = quantity.to_reduced_units()
    return math.floor(reduced.magnitude) * reduced.units
