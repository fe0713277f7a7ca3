"""RULER's eight needle tasks: keys and values hidden in noise, in prose, or among other needles.

The needle is "One of the special magic KIND for KEY is: VALUE." Keys are adjective-noun or UUIDs, values 7-digit
numbers or UUIDs. RULER's prose is essays of Paul Graham; here it is docstrings, in paragraphs.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.haystack import different_numbers, in_paragraphs, prose_without_end, shuffled_keys
from experiments.ruler.instances import Draft, Materials

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
N_DEPTHS = 40
"""In prose a needle stands at one of this many depths, evenly spaced from the beginning to the end."""


@dataclass(frozen=True, slots=True)
class NeedleTask:
    """One of the eight: what the haystack is, what keys and values are, how many there are and how many are asked."""

    haystack: Literal["noise", "prose", "needles"]
    values: Literal["numbers", "uuids"] = "numbers"
    uuid_keys: bool = False
    n_keys: int = 1
    n_values: int = 1
    n_asked: int = 1


NEEDLE_TASKS = {
    "niah_single_1": NeedleTask("noise"),
    "niah_single_2": NeedleTask("prose"),
    "niah_single_3": NeedleTask("prose", "uuids"),
    "niah_multikey_1": NeedleTask("prose", n_keys=4),
    "niah_multikey_2": NeedleTask("needles"),
    "niah_multikey_3": NeedleTask("needles", "uuids", uuid_keys=True),
    "niah_multivalue": NeedleTask("prose", n_values=4),
    "niah_multiquery": NeedleTask("prose", n_keys=4, n_asked=4),
}


def needle_builder(task: NeedleTask, materials: Materials, seed: str) -> Callable[[int], Draft]:
    """Gives the text of any size: lines of noise, sentences of prose, or other needles, and the task's needles in it.

    The size 0 is allowed. Its builder raises ValueError when there are not enough different keys.
    """
    order = list(materials.sentences) if task.haystack == "prose" else []
    random.Random(f"{seed} prose").shuffle(order)

    def build(size: int) -> Draft:
        places = random.Random(f"{seed} places {size}")
        pairs = _pairs(task, seed)
        needles = list(itertools.islice(pairs, task.n_keys * task.n_values))
        asked = needles[: task.n_asked * task.n_values]
        hidden = [_sentence(task, *pair) for pair in needles]
        if task.haystack == "prose":
            filler = list(itertools.islice(prose_without_end(order), size))
            text = in_paragraphs(_inserted(filler, hidden, _depths(size, len(hidden), places)))
        else:
            others = (_sentence(task, *pair) for pair in pairs)
            filler = [NOISE] * size if task.haystack == "noise" else list(itertools.islice(others, size))
            if len(filler) < size:
                raise ValueError(f"there are keys for {len(filler)} needles only; ask for fewer tokens")
            text = "\n".join(_inserted(filler, hidden, [places.randint(0, size) for _ in hidden])) + "\n"
        return Draft(f"{_intro(task)}\n\n{text}", _question(task, asked), tuple(value for _, value in asked))

    return build


def _pairs(task: NeedleTask, seed: str) -> Iterator[tuple[str, str]]:
    """Keys with values, all values different, `n_values` for each key, in an order that follows from the seed."""
    generator = random.Random(f"{seed} needles")
    values = (
        _uuids(generator) if task.values == "uuids" else map(str, different_numbers(random.Random(f"{seed} values")))
    )
    for key in _uuids(random.Random(f"{seed} keys")) if task.uuid_keys else shuffled_keys(generator):
        for value in itertools.islice(values, task.n_values):
            yield key, value


def _uuids(generator: random.Random) -> Iterator[str]:
    while True:
        yield str(uuid.UUID(int=generator.getrandbits(128), version=4))


def _intro(task: NeedleTask) -> str:
    if task.n_asked * task.n_values == 1:
        kind = task.values.removesuffix("s")
        return f"A special magic {kind} is hidden within the following text. Memorize it: you will be asked for it."
    return f"Some special magic {task.values} are hidden within the following text. Memorize them: you will be asked."


def _sentence(task: NeedleTask, key: str, value: str) -> str:
    return f"One of the special magic {task.values} for {key} is: {value}."


def _question(task: NeedleTask, asked: Sequence[tuple[str, str]]) -> str:
    keys = list(dict.fromkeys(key for key, _ in asked))
    named = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])}, and {keys[-1]}"
    if len(asked) == 1:
        return f"What is the special magic {task.values.removesuffix('s')} for {named} mentioned in the text?"
    return f"What are all the special magic {task.values} for {named} mentioned in the text?"


def _depths(size: int, n: int, places: random.Random) -> list[int]:
    return [round(size * depth / (N_DEPTHS - 1)) for depth in places.sample(range(N_DEPTHS), n)]


def _inserted(filler: Sequence[str], hidden: Sequence[str], places: Sequence[int]) -> list[str]:
    """The rows of filler with each hidden one before the row of its place."""
    rows = list(filler)
    for place, sentence in sorted(zip(places, hidden, strict=True), reverse=True):
        rows.insert(place, sentence)
    return rows
