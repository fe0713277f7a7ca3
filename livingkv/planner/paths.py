"""The paths as data: which inequalities must hold so that a way of running a model is open (paths.json).

Knows names of laws and symbols; decides nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Test:
    """One inequality. if_given: it only counts where this symbol is known: what nobody asked for limits nothing."""

    left: str
    op: str
    right: str
    unit: str
    says: str
    if_given: str | None = None

    @property
    def text(self) -> str:
        """As it is written in plans."""
        return f"{self.left} {self.op} {self.right}"


@dataclass(frozen=True, slots=True)
class Way:
    """One of the alternatives of a path: all of its tests must hold."""

    name: str
    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """Open where all of `common` hold and all tests of one of the ways."""

    id: str
    name: str
    common: tuple[Test, ...]
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """Said of a plan where all of the inequalities (left, operator, right) hold."""

    id: str
    tests: tuple[tuple[str, str, str], ...]
    says: str


@dataclass(frozen=True, slots=True)
class Shortage:
    """What may be too small: `need` of it, where there is `has`."""

    id: str
    name: str
    need: str
    has: str
    unit: str


@dataclass(frozen=True, slots=True)
class Paths:
    """Everything that paths.json holds."""

    paths: tuple[Path, ...]
    remarks: tuple[Remark, ...]
    shortages: tuple[Shortage, ...]


@cache
def paths() -> Paths:
    """The paths of this version of livingkv."""
    data = json.loads(files("livingkv.planner").joinpath("paths.json").read_text("utf-8"))
    return Paths(
        tuple(
            Path(
                row["id"],
                row["name"],
                tuple(Test(**one) for one in row["all"]),
                tuple(Way(way["name"], tuple(Test(**one) for one in way["tests"])) for way in row["any"]),
            )
            for row in data["paths"]
        ),
        tuple(Remark(row["id"], tuple(map(tuple, row["all"])), row["says"]) for row in data["remarks"]),
        tuple(Shortage(**row) for row in data["shortages"]),
    )
