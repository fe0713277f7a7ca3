"""The texts of the grid: single needles at given depths, or many needles of one type, and what is asked of each text.

Knows sentences and depths; knows no memory. A single needle is the only one of its kind in its text. To save reading,
one text holds a needle of a different kind at every depth; from sample to sample the kinds move on by one depth, so
that no depth belongs to one kind.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.haystack import (
    CountTokens,
    Needle,
    build_haystack,
    choose_asked,
    different_numbers,
    in_paragraphs,
    make_needles,
    shuffled_filler,
    shuffled_keys,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A statement, and three ways to ask for its value."""

    statement: str
    questions: tuple[str, str, str]


KINDS = (
    Kind(
        "The special magic number for {key} is: {value}.",
        (
            "What is the special magic number for {key}?",
            "Someone asked me about {key}: which magic number belongs to it?",
            "I forgot the magic number that goes with {key}. Which one was it?",
        ),
    ),
    Kind(
        "The vault behind the {key} opens with the code {value}.",
        (
            "Which code opens the vault behind the {key}?",
            "I stand before the vault behind the {key}. What do I have to type?",
            "How is the vault behind the {key} opened?",
        ),
    ),
    Kind(
        "Members of the {key} club dial {value} to reach it.",
        (
            "Which number do members of the {key} club dial?",
            "How can I reach the {key} club by telephone?",
            "What is the telephone number of the {key} club?",
        ),
    ),
    Kind(
        "The {key} expedition carried {value} grams of salt.",
        (
            "How many grams of salt did the {key} expedition carry?",
            "How much salt was with the {key} expedition?",
            "What weight of salt, in grams, went along on the {key} expedition?",
        ),
    ),
    Kind(
        "The library keeps its {key} atlas under shelf mark {value}.",
        (
            "Under which shelf mark does the library keep its {key} atlas?",
            "What is the shelf mark of the {key} atlas?",
            "Where in the library do I find the {key} atlas?",
        ),
    ),
    Kind(
        "A parcel for the {key} inn has the tracking number {value}.",
        (
            "Which tracking number has the parcel for the {key} inn?",
            "The {key} inn waits for a parcel. What is its tracking number?",
            "How can the parcel for the {key} inn be tracked?",
        ),
    ),
    Kind(
        "The {key} satellite was launched with serial number {value}.",
        (
            "With which serial number was the {key} satellite launched?",
            "What is the serial number of the {key} satellite?",
            "Which number does the {key} satellite in orbit bear?",
        ),
    ),
    Kind(
        "Rent for the {key} theatre came to {value} crowns.",
        (
            "How many crowns did the rent for the {key} theatre come to?",
            "What did it cost to rent the {key} theatre?",
            "How much rent was paid for the {key} theatre?",
        ),
    ),
    Kind(
        "Passport {value} belongs to the envoy of {key}.",
        (
            "Which passport belongs to the envoy of {key}?",
            "What is the passport number of the envoy of {key}?",
            "The envoy of {key} lost a passport. Which number did it have?",
        ),
    ),
    Kind(
        "The {key} mine lies {value} millimetres deep.",
        (
            "How many millimetres deep does the {key} mine lie?",
            "What is the depth of the {key} mine?",
            "How far down is the {key} mine, in millimetres?",
        ),
    ),
    Kind(
        "Ticket {value} won the {key} lottery.",
        (
            "Which ticket won the {key} lottery?",
            "What was the winning ticket of the {key} lottery?",
            "Somebody won the {key} lottery. With which number?",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Text:
    """Which text: its length, how many needles of one type (0: single ones at depths), which sample."""

    tokens: int
    needles: int
    sample: int

    @property
    def name(self) -> str:
        """For the store's folder."""
        return f"{self.tokens}-{self.needles or 'single'}-{self.sample}"


@dataclass(frozen=True, slots=True)
class Question:
    """One question to one text. `depth` in percent and `kind` are those of a single needle."""

    text: Text
    question: str
    key: str
    value: str
    sentence: str
    phrasing: int
    depth: int | None = None
    kind: int | None = None


def questions(text: Text, depths: Sequence[int], phrasings: Sequence[int], ask: int, seed: int) -> list[Question]:
    """What is asked of a text: every single needle or `ask` of the many, in each phrasing."""
    own = own_seed(text, seed)
    if text.needles:
        needles = choose_asked(make_needles(text.needles, seed=own), ask, seed=own)
        return [
            Question(text, needle.question(phrasing), needle.key, needle.value, needle.sentence, phrasing)
            for phrasing in phrasings
            for needle in needles
        ]
    return [
        Question(text, asked.format(key=key), key, value, _statement(kind, key, value), phrasing, depth, kind)
        for depth, kind, key, value in _singles(text, depths, seed)
        for phrasing in phrasings
        for asked in (KINDS[kind].questions[phrasing - 1],)
    ]


def write_text(text: Text, depths: Sequence[int], seed: int, count_tokens: CountTokens) -> bytes:
    """The text. Raises ValueError where the needles alone are longer, or where there are more depths than kinds."""
    own = own_seed(text, seed)
    if text.needles:
        needles = make_needles(text.needles, seed=own)
        return build_haystack(text.tokens, needles, seed=own, count_tokens=count_tokens).text.encode()
    sentences = _prose(text.tokens, own, count_tokens)
    n = len(sentences)
    for depth, kind, key, value in sorted(_singles(text, depths, seed), reverse=True):
        sentences.insert(round(depth / 100 * n), _statement(kind, key, value))
    return in_paragraphs(sentences).encode()


def own_seed(text: Text, seed: int) -> int:
    """Samples differ in prose and needles."""
    return seed + text.sample


def answered(question: Question, answer: str) -> bool:
    """Whether the value stands in the answer."""
    return Needle(question.key, question.value).answered_by(answer)


def _prose(n_tokens: int, seed: int, count_tokens: CountTokens) -> list[str]:
    sentences: list[str] = []
    prose, total = shuffled_filler(seed), 0
    while total < n_tokens:
        batch = list(itertools.islice(prose, 256))
        for sentence, count in zip(batch, count_tokens([f" {sentence}" for sentence in batch]), strict=True):
            if total < n_tokens:
                sentences.append(sentence)
                total += count
    return sentences


def _singles(text: Text, depths: Sequence[int], seed: int) -> list[tuple[int, int, str, str]]:
    """(depth, kind, key, value) of each single needle."""
    if len(depths) > len(KINDS):
        raise ValueError(f"{len(depths)} depths: at most {len(KINDS)}, as many as there are kinds of needles")
    generator = random.Random(f"singles {own_seed(text, seed)}")
    keys = shuffled_keys(generator)
    numbers = different_numbers(generator)
    return [
        (depth, (index + text.sample) % len(KINDS), keys[index], str(next(numbers)))
        for index, depth in enumerate(depths)
    ]


def _statement(kind: int, key: str, value: str) -> str:
    return KINDS[kind].statement.format(key=key, value=value)
