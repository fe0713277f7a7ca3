"""Results of one RULER experiment that several processes made side by side, as one. Knows the JSON of 008_ruler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def merged(parts: Sequence[Row]) -> Row:
    """One result of at least one part. What stands in several parts is taken from the first of them.

    Raises ValueError where plan, model or commit differ.
    """
    for part in parts:
        for name in ("label", "plan", "model"):
            if part[name] != parts[0][name]:
                raise ValueError(f"the parts differ in {name}; they cannot be one result")
        if _commit(part) != _commit(parts[0]):
            raise ValueError("the parts differ in their commit; they cannot be one result")
    texts = _first([row for part in parts for row in part["texts"]], ("tokens", "sample", "task"))
    answers = _first([row for part in parts for row in part["answers"]], ("tokens", "sample", "task", "system"))
    seconds = [number for part in parts for number in part.get("seconds", [])]
    return parts[0] | {"texts": texts, "answers": answers, "seconds": seconds}


def _commit(part: Row) -> str | None:
    commit: str | None = part["end"]["circumstances"]["commit"]
    return commit


def _first(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), row)
    return list(found.values())
