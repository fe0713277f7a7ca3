"""A conversation in which the assistant tells facts, and the questions about them. Everything follows from the seed."""

from __future__ import annotations

import random
from typing import NamedTuple

from experiments.facts import make_facts, make_questions
from experiments.haystack import make_needles, shuffled_filler

N_PEOPLE, N_PROPERTIES, N_NEEDLES, N_ABSENT = 12, 2, 10, 4
N_EACH, N_STRANGERS = 12, 4


class Exchange(NamedTuple):
    """What a user says, and the reply."""

    user: str
    reply: str


class Asked(NamedTuple):
    """A question, and the value that answers it; None where nothing does."""

    kind: str
    text: str
    value: str | None

    def answered_by(self, answer: str) -> bool:
        """Whether the value stands in the answer, separators of thousands or not."""
        return self.value is not None and self.value.casefold() in answer.replace(",", "").casefold()


def register(seed: int) -> tuple[list[Exchange], list[Asked]]:
    """Exchanges of which each reply holds two facts and a sentence of prose; the user's words hold none of them."""
    facts, needles = make_facts(N_PEOPLE, N_PROPERTIES, seed=seed), make_needles(N_NEEDLES + N_ABSENT, seed=seed)
    told = [fact.text for fact in facts] + [needle.sentence for needle in needles[:N_NEEDLES]]
    random.Random(f"register {seed}").shuffle(told)
    prose = shuffled_filler(seed)
    exchanges = [
        Exchange(f"What does entry {number} of the register say?", f"{one} {next(prose)} {other}")
        for number, (one, other) in enumerate(zip(told[::2], told[1::2], strict=True), 1)
    ]
    questions = make_questions(facts, N_EACH, seed=seed)[: 2 * N_EACH + N_STRANGERS]
    asked = [Asked(f"fact {q.kind.name}", q.text, q.value) for q in questions]
    for index, needle in enumerate(needles):
        there = index < N_NEEDLES
        kind = "needle STORED" if there else "needle absent"
        asked.append(Asked(kind, needle.question(index % 2 + 1), needle.value if there else None))
    random.Random(f"order {seed}").shuffle(asked)
    return exchanges, asked
