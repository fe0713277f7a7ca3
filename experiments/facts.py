"""Facts about people in plain prose, with questions whose answers are known to be stored or known not to be.

Every person has a few properties out of `PROPERTIES`; a question asks for one in three phrasings, of which the third
shares as few words as it can with the statement. Questions about a property that a stored person does not have, and
about persons who are not stored, have no answer. Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

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


def _property(name: str, statement: str, again: str, questions: tuple[str, str, str], values: str) -> Property:
    return Property(name, statement, again, questions, tuple(value.strip() for value in values.split(",")))


PROPERTIES = (
    _property("job", "{s} works as a {v}.", "This one works as a {v}.",
              ("What does {s} work as?", "What is {s}'s job?", "How does {s} earn a living?"),
              "carpenter, welder, baker, plumber, geologist, florist, tailor, pharmacist, surveyor, locksmith, beekeeper, translator"),
    _property("town", "{s} lives in {v}.", "Home is in {v}.",
              ("Where does {s} live?", "In which town does {s} live?", "If I wanted to visit {s} at home, where would I go?"),
              "Tromso, Ghent, Porto, Leeds, Graz, Bergen, Turin, Malaga, Lublin, Utrecht, Bilbao, Tartu, Aarhus, Lucerne"),
    _property("instrument", "{s} plays the {v} in an orchestra.", "The instrument in the orchestra is the {v}.",
              ("Which instrument does {s} play?", "What does {s} play in the orchestra?", "What would {s} bring to a concert?"),
              "viola, oboe, bassoon, cello, trombone, harp, clarinet, tuba, flute, timpani"),
    _property("allergy", "{s} is allergic to {v}.", "There is an allergy to {v}.",
              ("What is {s} allergic to?", "Which food gives {s} an allergic reaction?", "What must I not cook when {s} comes to dinner?"),
              "walnuts, shellfish, celery, strawberries, mustard, sesame, peanuts, kiwi, soy, lupin"),
    _property("birthday", "{s} was born on {v}.", "The date of birth is {v}.",
              ("When was {s} born?", "What is {s}'s date of birth?", "On which day should I congratulate {s}?"),
              "3 March 1971, 19 July 1984, 8 May 1990, 27 October 1966, 14 January 1979, 30 August 1993, 2 December 1958, 11 June 1987"),
    _property("car", "{s} drives a {v}.", "The car is a {v}.",
              ("Which car does {s} drive?", "What does {s} drive?", "In what vehicle will {s} come?"),
              "green Volvo, red Fiat, white Skoda, blue Saab, yellow Renault, black Mazda, silver Opel, brown Lancia"),
    _property("pet", "{s} keeps a {v} as a pet.", "The pet at home is a {v}.",
              ("Which pet does {s} keep?", "What animal does {s} have as a pet?", "Who waits at home for {s} with four legs or wings?"),
              "tortoise, ferret, parrot, hedgehog, greyhound, canary, rabbit, chameleon, beagle, goat"),
    _property("badge", "The badge number of {s} is {v}.", "The badge number is {v}.",
              ("What is the badge number of {s}?", "Which number is on {s}'s badge?", "How is {s} registered at the gate?"),
              "4471, 9036, 2218, 7754, 1390, 8862, 6615, 3027, 5549, 7183"),
    _property("spouse", "{s} is married to {v}.", "The marriage is with {v}.",
              ("Who is {s} married to?", "Who is the spouse of {s}?", "Whose name goes beside {s} on the wedding card?"),
              "Quentin, Odile, Bertram, Yvonne, Ansel, Delphine, Casimir, Rosalind, Thaddeus, Imogen"),
    _property("sport", "{s} trains for {v} every week.", "There is training for {v} every week.",
              ("What does {s} train for?", "Which sport does {s} train?", "How does {s} keep fit?"),
              "fencing, rowing, archery, handball, curling, judo, water polo, badminton, triathlon, bouldering"),
    _property("degree", "{s} studied {v} at university.", "The subject at university was {v}.",
              ("What did {s} study at university?", "Which degree does {s} have?", "In what was {s} educated?"),
              "chemistry, law, philosophy, botany, statistics, architecture, theology, astronomy, linguistics, economics"),
    _property("dish", "{s}'s favourite dish is {v}.", "The favourite dish is {v}.",
              ("What is {s}'s favourite dish?", "Which dish does {s} like best?", "What should I serve to make {s} happy?"),
              "lasagne, goulash, paella, moussaka, ratatouille, risotto, borscht, pierogi, tagine, fondue"),
    _property("phone", "The phone extension of {s} is {v}.", "The phone extension is {v}.",
              ("What is the phone extension of {s}?", "Which extension do I dial for {s}?", "How can I ring {s} inside the house?"),
              "x118, x245, x372, x409, x516, x633, x740, x857, x964, x291"),
    _property("language", "{s} is learning {v} in the evenings.", "The language course in the evenings is {v}.",
              ("Which language is {s} learning?", "What is {s} learning in the evenings?", "In what new tongue could I greet {s}?"),
              "Finnish, Welsh, Korean, Swahili, Basque, Danish, Hebrew, Catalan, Latvian, Icelandic"),
    _property("office", "The office of {s} is room {v}.", "The office is room {v}.",
              ("In which room is the office of {s}?", "Where is {s}'s office?", "On which door do I knock to see {s}?"),
              "B12, C07, A31, D19, E24, F05, G16, H28, K03, L22"),
    _property("shoe", "{s} wears shoes of size {v}.", "The shoe size is {v}.",
              ("What size of shoes does {s} wear?", "What is {s}'s shoe size?", "How large are the boots I must order for {s}?"),
              "36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46"),
    _property("employer", "{s} is employed by {v}.", "The employer is {v}.",
              ("Who employs {s}?", "Which company is {s} employed by?", "On whose payroll is {s}?"),
              "Norvik Shipping, Halden Optics, Brightwater Bank, Castell Foods, Ostra Energy, Penrose Textiles, Kestrel Air, Lumen Glass"),
    _property("blood", "The blood group of {s} is {v}.", "The blood group is {v}.",
              ("What is the blood group of {s}?", "Which blood group does {s} have?", "What would a hospital give {s} in a transfusion?"),
              "A positive, B negative, O positive, AB negative, O negative, B positive, A negative, AB positive"),
    _property("school", "{s}'s daughter goes to {v}.", "The daughter goes to {v}.",
              ("Which school does {s}'s daughter go to?", "Where does the daughter of {s} go to school?", "Who teaches the child of {s}?"),
              "Hillcrest Academy, Saint Anselm School, Marlow Grammar, Eastfield College, Tilbury School, Wexford Lyceum"),
    _property("train", "{s} takes the {v} train to work.", "The train to work is the {v}.",
              ("Which train does {s} take to work?", "When does {s}'s train to work leave?", "At what time must I be on the platform to meet {s} in the morning?"),
              "6:12, 6:48, 7:05, 7:21, 7:39, 7:54, 8:07, 8:26"),
)  # fmt: skip
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
