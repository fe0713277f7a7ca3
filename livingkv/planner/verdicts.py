"""Verdicts: each path is open, closed or undecided, by its inequalities in three-valued logic; and which one decides.

Knows paths and amounts; knows no wishes but what was given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from livingkv.planner.paths import Path, Shortage, Test, paths
from livingkv.planner.units import Amount
from livingkv.planner.working import Working

Answer = Literal["yes", "no", "maybe"]


@dataclass(frozen=True, slots=True)
class Tried:
    """An inequality and both of its sides in `test.unit`. holds: None where a side is unknown; `lacking` says what."""

    test: Test
    left: Amount | None
    right: Amount | None
    holds: bool | None
    lacking: tuple[str, ...]

    @property
    def slack(self) -> float:
        """How far the inequality is from turning over, as a share of its larger side; 0 where that is unknown."""
        if self.left is None or self.right is None:
            return 0.0
        larger = max(abs(self.left.value), abs(self.right.value))
        if larger == 0 or math.isinf(larger):
            return 0.0 if larger == 0 else 1.0
        return abs(self.left.value - self.right.value) / larger


@dataclass(frozen=True, slots=True)
class Verdict:
    """way: the alternative that decides; of a path that is closed in several ways, the one that is nearest to open.
    deciding: the tightest inequality of a yes, the failing one of a no, the first undecided one of a maybe. supply: the
    symbols that would decide a maybe."""

    path: Path
    answer: Answer
    way: str
    deciding: Tried
    supply: tuple[str, ...]


def verdicts(working: Working) -> tuple[Verdict, ...]:
    """One for each path, in their order."""
    return tuple(_verdict(path, working) for path in paths().paths)


def remarks(working: Working) -> tuple[tuple[str, str], ...]:
    """(id, text) of the remarks that apply."""
    return tuple(
        (one.id, one.says)
        for one in paths().remarks
        if all(tried(Test(*sides, _unit_of(sides[0], working), ""), working).holds for sides in one.tests)
    )


def shortage(working: Working) -> tuple[Shortage, Amount, Amount] | None:
    """What is the most too small, with need and what there is; None where nothing is known to be. Memory is not short
    where the device holds everything, nor a device where there is none and memory is enough."""
    found = []
    for one in paths().shortages:
        need, has = working.value(one.need, one.unit), working.value(one.has, one.unit)
        if need is not None and has is not None:
            found.append((one, need, has))
    homes = [each for each in found if each[0].id != "drive"]
    if any(need.value <= has.value for _, need, has in homes):
        found = [each for each in found if each[0].id == "drive"]
    else:
        found = [each for each in found if each[2].value > 0 or each[0].id != "device_memory" or len(homes) == 1]
    short = [each for each in found if each[1].value > each[2].value]
    return max(short, key=lambda each: each[1].value / max(each[2].value, 1e-9), default=None)


def tried(test: Test, working: Working) -> Tried:
    """One inequality. Raises InputError for a formula that is none, which only a changed paths.json can have."""
    lacking = tuple(dict.fromkeys((*working.lacking(test.left), *working.lacking(test.right))))
    left, right = working.value(test.left, test.unit), working.value(test.right, test.unit)
    if left is None or right is None:
        return Tried(test, left, right, None, lacking)
    holds = {
        "<=": left.value <= right.value,
        ">=": left.value >= right.value,
        "<": left.value < right.value,
        ">": left.value > right.value,
    }[test.op]
    return Tried(test, left, right, holds, ())


def _unit_of(formula: str, working: Working) -> str:
    """The unit of the first name of a formula."""
    from livingkv.planner.formula import names_in
    from livingkv.planner.laws import laws

    name = names_in(formula)[0]
    book = laws()
    return book.symbols[name].unit if name in book.symbols else book.laws[name].unit


def _verdict(path: Path, working: Working) -> Verdict:
    common = _counting(path.common, working)
    ways = [(way, [*common, *_counting(way.tests, working)]) for way in path.ways]
    way, tests = max(ways, key=lambda each: _openness(each[1]))
    failed = [one for one in tests if one.holds is False]
    undecided = [one for one in tests if one.holds is None]
    if failed:
        return Verdict(path, "no", way.name, max(failed, key=lambda one: one.slack), ())
    if undecided:
        supply = tuple(dict.fromkeys(name for one in undecided for name in one.lacking))
        return Verdict(path, "maybe", way.name, undecided[0], supply)
    return Verdict(path, "yes", way.name, min(tests, key=lambda one: one.slack), ())


def _openness(tests: Sequence[Tried]) -> tuple[float, ...]:
    """Of alternatives the largest decides, of equals the first: those that hold before the undecided, those before the
    failing; then the less undecided, and of failing ones the nearest to open."""
    failed = [one.slack for one in tests if one.holds is False]
    if failed:
        return (0, -max(failed))
    undecided = sum(one.holds is None for one in tests)
    if undecided:
        return (1, -undecided)
    return (2,)


def _counting(tests: Sequence[Test], working: Working) -> list[Tried]:
    """Those that count: tests of a wish that nobody stated do not."""
    return [tried(one, working) for one in tests if one.if_given is None or one.if_given in working.given]
