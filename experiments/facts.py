"""Facts about people in plain prose, with questions whose answers are known to be stored or known not to be.

Every person has a few properties out of `PROPERTIES`; a question asks for one in three phrasings, of which the third
shares as few words as it can with the statement. Questions about a property that a stored person does not have, and
about persons who are not stored, have no answer. Everything follows from the seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_FIRST = """
Ada Agnes Alma Anton Bela Boris Bruno Carla Cecil Clara Conrad Cora Dina Edgar Edith Elsa Emil Enzo Esther Felix Flora
Frida Gustav Hanna Hugo Ida Igor Ines Irma Ivan Jonas Judith Karl Klara Leo Lena Livia Louis Lydia Magda Marek Marta Max
Mira Nadia Nils Nina Olga Oscar Otto Paula Petra Rafael Rosa Ruth Selma Silas Simon Sofia Stefan Tessa Theo Thea Ulla
Vera Victor Walter Wanda Yara Zeno
"""
_LAST = """
Abbot Alder Ames Barlow Becker Bell Birch Bloom Brandt Calder Carver Chandler Cole Conti Cross Dahl Dawson Dorn Drake
Elm Fabre Farrow Finch Fisk Foster Frost Gale Garner Glass Grove Haas Hale Hardy Hart Hawk Heller Holt Hooper Hurst
Jansen Keller Kerr Klein Knox Lang Larkin Lind Locke Lowell Marsh Mercer Moss Nash Nolan North Novak Oakley Orton Page
Parr Pike Poole Quist Rand Reed Rhodes Rowe Sands Sharp Stone Strand Thorne Vance Voss Wade Webb West Winter Wolf York
"""


@dataclass(frozen=True, slots=True)
class Property:
    """What can be said of a person. `statement` and `questions` hold {s}, the person; `values` is what can be true."""

    name: str
    statement: str
    again: str
    """The statement with a pronoun, for a sentence that follows one with the name."""
    questions: tuple[str, str, str]
    values: tuple[str, ...]


PROPERTIES = tuple(
    Property(row["name"], row["statement"], row["again"], tuple(row["questions"]), tuple(row["values"]))
    for row in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
)
"""Twenty properties. The even ones are for fitting, the odd ones for testing (`fold`)."""


class Kind(Enum):
    """Whether a question has an answer in the text, and if not, why."""

    STORED = "stored"
    OTHER_PROPERTY = "known person, property not stored"
    OTHER_PERSON = "person not stored"


@dataclass(frozen=True, slots=True)
class Fact:
    """One property of one person, and the sentences that say it (the first holds the name)."""

    person: str
    name: str
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class FactQuestion:
    """A question, its kind and, when stored, its value and the fact's text."""

    text: str
    kind: Kind
    phrasing: int
    name: str
    person: str
    value: str | None
    fact: str | None

    def answered_by(self, answer: str) -> bool:
        """Whether the value stands in the answer."""
        return self.value is not None and self.value.casefold() in answer.casefold()


def make_facts(n_people: int, n_properties: int, *, seed: int) -> list[Fact]:
    """Facts of so many people with so many properties each, in the order of people."""
    generator = random.Random(f"facts {seed}")
    facts = []
    for person in _people(n_people, f"people {seed}"):
        for item in generator.sample(PROPERTIES, n_properties):
            value = generator.choice(item.values)
            facts.append(Fact(person, item.name, value, item.statement.format(s=person, v=value)))
    return facts


def _people(n: int, seed: str) -> list[str]:
    generator = random.Random(seed)
    names = [f"{first} {last}" for first in _FIRST.split() for last in _LAST.split()]
    return generator.sample(names, n)


def make_questions(facts: Sequence[Fact], n_each: int, *, seed: int) -> list[FactQuestion]:
    """`n_each` questions of each kind, phrasings in turn."""
    generator = random.Random(f"questions {seed}")
    by_name = {item.name: item for item in PROPERTIES}
    stored = generator.sample(list(facts), n_each)
    questions = [
        FactQuestion(by_name[f.name].questions[i % 3].format(s=f.person), Kind.STORED, i % 3 + 1, f.name, f.person,
                     f.value, f.text)
        for i, f in enumerate(stored)
    ]  # fmt: skip
    return [*questions, *_absent(facts, n_each, generator)]


def _absent(facts: Sequence[Fact], n_each: int, generator: random.Random) -> Iterator[FactQuestion]:
    known: dict[str, set[str]] = {}
    for fact in facts:
        known.setdefault(fact.person, set()).add(fact.name)
    people = sorted(known)
    strangers = [name for name in _people(len(people) + 200, f"strangers {generator.random()}") if name not in known]
    for i in range(n_each):
        person = generator.choice(people)
        item = generator.choice([p for p in PROPERTIES if p.name not in known[person]])
        text = item.questions[i % 3].format(s=person)
        yield FactQuestion(text, Kind.OTHER_PROPERTY, i % 3 + 1, item.name, person, None, None)
    for i in range(n_each):
        person, item = strangers[i % len(strangers)], generator.choice(PROPERTIES)
        text = item.questions[i % 3].format(s=person)
        yield FactQuestion(text, Kind.OTHER_PERSON, i % 3 + 1, item.name, person, None, None)


def fold(name: str) -> int:
    """0 for the properties to fit on, 1 for those to test on."""
    return [item.name for item in PROPERTIES].index(name) % 2
