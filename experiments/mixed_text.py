"""A text of facts about people and needles of one type in docstring prose, of a given length, and its questions.

The same rows and questions at every length, so that lengths can be compared: only the prose between them grows. Half
of the questions ask for facts and half for needles, each kind in three phrasings in turn. Follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.facts import make_facts, make_questions
from experiments.haystack import CountTokens, in_paragraphs, make_needles, shuffled_filler

N_PEOPLE, N_PROPERTIES, N_NEEDLES = 20, 4, 60


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, the value that answers it, and the sentence that holds it."""

    kind: str
    phrasing: int
    text: str
    value: str
    gold: str

    def answered_by(self, answer: str) -> bool:
        """Whether the value stands in the answer, separators of thousands or not."""
        return self.value.replace(",", "").casefold() in answer.replace(",", "").casefold()


def rows_of(seed: int) -> list[str]:
    """The sentences that are asked for, and their like."""
    facts = make_facts(N_PEOPLE, N_PROPERTIES, seed=seed)
    return [*(needle.sentence for needle in make_needles(N_NEEDLES, seed=seed)), *(fact.text for fact in facts)]


def mixed_text(n_tokens: int, *, seed: int, count_tokens: CountTokens) -> bytes:
    """The rows in random order, prose evenly between them, `n_tokens` in all, at most a sentence more.

    Raises ValueError where the rows alone are longer.
    """
    rows = rows_of(seed)
    random.Random(f"order {seed}").shuffle(rows)
    total = sum(count_tokens([f" {row}" for row in rows]))
    if total >= n_tokens:
        raise ValueError(f"the rows alone take {total} tokens of the {n_tokens} asked for; ask for more tokens")
    filler: list[str] = []
    prose = shuffled_filler(seed)
    while total < n_tokens:
        batch = [next(prose) for _ in range(64)]
        for sentence, count in zip(batch, count_tokens([f" {sentence}" for sentence in batch]), strict=True):
            if total < n_tokens:
                filler.append(sentence)
                total += count
    share = len(filler) / len(rows)
    lines: list[str] = []
    for index, row in enumerate(rows):
        lines += [row, *filler[int(index * share) : int((index + 1) * share)]]
    return in_paragraphs(lines).encode()


def mixed_questions(n: int, *, seed: int) -> list[Asked]:
    """n questions, facts and needles in turn, the phrasings of each in turn. The first ones do not depend on n."""
    facts = make_questions(make_facts(N_PEOPLE, N_PROPERTIES, seed=seed), 40, seed=seed)[:40]
    needles = make_needles(N_NEEDLES, seed=seed)
    random.Random(f"asked {seed}").shuffle(needles)
    asked: list[Asked] = []
    for index in range(n):
        turn = index // 2
        phrasing = turn % 3 + 1
        if index % 2:
            one = needles[turn]
            asked.append(Asked("needle", phrasing, one.question(phrasing), one.value, one.sentence))
        else:
            fact = facts[turn]
            assert fact.value is not None and fact.fact is not None, "stored facts come first"
            asked.append(Asked("fact", fact.phrasing, fact.text, fact.value, fact.fact))
    return asked


def find_row(texts: Sequence[str], gold: str) -> int:
    """Index of the sentence that holds a row. Raises ValueError where there is none."""
    for index, text in enumerate(texts):
        if gold in text:
            return index
    raise ValueError(f"no sentence holds {gold!r}")
