"""RULER's variable tracking: one chain of assignments in noise, and the question which variables hold its value.

Five variables of five capitals, four hops: the first is given a 5-digit number, every later one the variable before it.
A solved small example stands in front, as in RULER.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

from experiments.ruler.instances import Draft
from experiments.ruler.niah import NOISE

N_HOPS = 4
_EXAMPLE_NOISE = 5
_INTRO = "Memorize and follow the chain of variable assignments that is hidden in the following text."


def chain_builder(seed: str, *, example: bool) -> Callable[[int], Draft]:
    """Gives the text of `size` lines of noise with the chain in it, in order."""
    shown = _example(_chain(random.Random(f"{seed} example"))) if example else ""
    chain = _chain(random.Random(f"{seed} chain"))

    def build(size: int) -> Draft:
        text = _text(chain, size, random.Random(f"{seed} places {size}"))
        return Draft(f"{shown}{_INTRO}\n\n{text}", _question(chain), chain.variables)

    return build


@dataclass(frozen=True, slots=True)
class _Chain:
    """The variables in the order of their assignments, and the value of all of them."""

    value: str
    variables: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        sources = [self.value, *(f"VAR {name}" for name in self.variables[:-1])]
        return [f"VAR {name} = {source}" for name, source in zip(self.variables, sources, strict=True)]


def _chain(generator: random.Random) -> _Chain:
    names: dict[str, None] = {}
    while len(names) <= N_HOPS:
        names["".join(generator.choices(string.ascii_uppercase, k=5))] = None
    return _Chain(str(generator.randrange(10_000, 100_000)), tuple(names))


def _text(chain: _Chain, size: int, places: random.Random) -> str:
    rows = [NOISE] * size
    for place, line in reversed(
        list(zip(sorted(places.randint(0, size) for _ in chain.lines), chain.lines, strict=True))
    ):
        rows.insert(place, line)
    return "\n".join(rows) + "\n"


def _question(chain: _Chain) -> str:
    n = len(chain.variables)
    value = f"the value {chain.value} in the text"
    return f"Find all variables that are assigned {value}. There are {n} of them; name all {n}."


def _example(chain: _Chain) -> str:
    text = _text(chain, _EXAMPLE_NOISE, random.Random(f"places {chain.value}"))
    answer = f"{len(chain.variables)} variables are assigned the value {chain.value}: {' '.join(chain.variables)}"
    return f"{_INTRO}\n\n{text}\n{_question(chain)}\n{answer}\n\n"
