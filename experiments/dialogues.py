"""Conversations of one user with an assistant, facts said in passing, in the shape of LongMemEval (arXiv 2410.10813).

A history is a list of sessions, each of them messages with roles: small talk from sentence templates, facts between.
Questions are of seven types: facts that the user told, facts that the assistant told, preferences, facts that changed
since, dates and their order, two facts of two sessions together, and what nobody ever said. Nothing is taken from that
data set, whose texts are not here: the sentences are our own, in dialogues.json. Everything follows from the seed.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Type = Literal["user", "assistant", "preference", "update", "temporal", "multi-session", "abstention"]
TYPES: tuple[Type, ...] = ("user", "assistant", "preference", "update", "temporal", "multi-session", "abstention")
Message = dict[str, object]

DATA: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
_SLOT = re.compile(r"{(\w+)}")
_WORDS_PER_TOKEN = 0.75
_FOLLOW_UPS = ("Is there anything that you would like to add?", "Tell me how it goes.", "I hope that helps a little.")


@dataclass(frozen=True, slots=True)
class Told:
    """A fact in the session where it is said: `before` is a message of the user's that an assistant's answer needs."""

    session: int
    role: Literal["user", "assistant"]
    text: str
    before: str | None = None


@dataclass(frozen=True, slots=True)
class DialogueQuestion:
    """A question about a history. gold: the sentences that hold the answer, all needed; expected: what a right answer
    holds, every one of it; outdated: what it must not hold. Both empty where nothing answers it."""

    type: Type
    name: str
    text: str
    gold: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()

    def answered_by(self, answer: str) -> bool:
        """Whether everything expected stands in the answer and nothing outdated does."""
        said = answer.casefold()
        if not self.expected or any(value.casefold() in said for value in self.outdated):
            return False
        return all(value.casefold() in said for value in self.expected)


@dataclass(frozen=True, slots=True)
class History:
    """Sessions in the order of time, and the questions that come after them."""

    sessions: tuple[tuple[Message, ...], ...]
    questions: tuple[DialogueQuestion, ...]

    @property
    def transcript(self) -> str:
        """All of it as one text, for a model that reads everything."""
        talks = ("\n".join(f"{m['role']}: {m['content']}" for m in session) for session in self.sessions)
        return "\n\n".join(f"Conversation {number}\n{talk}" for number, talk in enumerate(talks, 1))


def make_history(n_sessions: int, session_tokens: int, *, seed: int) -> History:
    """A history of so many sessions of about `session_tokens` tokens. At least two sessions."""
    generator = random.Random(f"history {seed}")
    told, questions = _facts(generator, n_sessions)
    talk = _small_talk(random.Random(f"small talk {seed}"))
    sessions = tuple(
        tuple(_session([fact for fact in told if fact.session == number], talk, session_tokens, generator))
        for number in range(n_sessions)
    )
    return History(sessions, tuple(questions))


def _facts(generator: random.Random, n_sessions: int) -> tuple[list[Told], list[DialogueQuestion]]:
    told: list[Told] = []
    asked: list[DialogueQuestion] = []

    def somewhere() -> int:
        return generator.randrange(n_sessions)

    for make in (_of_user, _of_assistant, _preferences, _updates, _dates, _pairs):
        for facts, questions in make(generator, somewhere):
            told += facts
            asked += questions
    asked += [DialogueQuestion("abstention", row["name"], row["asked"]) for row in DATA["absent"]]
    return told, asked


Made = Iterator[tuple[list[Told], list[DialogueQuestion]]]


def _of_user(generator: random.Random, somewhere: Callable[[], int]) -> Made:
    for index, row in enumerate(DATA["user facts"]):
        value = generator.choice(row["values"])
        said = generator.choice(row["said"]).format(v=value)
        question = DialogueQuestion("user", row["name"], row["asked"][index % 3], (said,), (_core(value),))
        yield [Told(somewhere(), "user", said)], [question]


def _of_assistant(generator: random.Random, somewhere: Callable[[], int]) -> Made:
    for index, row in enumerate(DATA["assistant facts"]):
        value = generator.choice(row["values"])
        said = row["said"][0].format(v=value)
        question = DialogueQuestion("assistant", row["name"], row["asked"][index % 3], (said,), (_core(value),))
        yield [Told(somewhere(), "assistant", said, row["asks"])], [question]


def _preferences(generator: random.Random, somewhere: Callable[[], int]) -> Made:
    for row in DATA["preferences"]:
        said = row["said"][0]
        question = DialogueQuestion("preference", row["name"], row["asked"][0], (said,), tuple(row["values"]))
        yield [Told(somewhere(), "user", said)], [question]


def _updates(generator: random.Random, somewhere: Callable[[], int]) -> Made:
    for index, row in enumerate(DATA["updates"]):
        old, new = generator.sample(row["values"], 2)
        first, second = sorted(_two(somewhere))
        before, after = row["said"][0].format(v=old), row["later"][0].format(v=new)
        question = DialogueQuestion("update", row["name"], row["asked"][index % 3], (after,), (new,), (old,))
        yield [Told(first, "user", before), Told(second, "user", after)], [question]


def _dates(generator: random.Random, somewhere: Callable[[], int]) -> Made:
    days = sorted(generator.sample(range(12 * 28), len(DATA["dates"])))
    rows = generator.sample(DATA["dates"], len(DATA["dates"]))
    places = sorted(somewhere() for _ in rows)
    said = [row["said"][0].format(v=_date(day)) for row, day in zip(rows, days, strict=True)]
    for index, (row, day, text) in enumerate(zip(rows, days, said, strict=True)):
        questions = [DialogueQuestion("temporal", row["name"], row["asked"][index % 2], (text,), (_date(day),))]
        if index % 2:
            first, second = (rows[number]["event"] for number in (index - 1, index))
            one, other = generator.sample((first, second), 2)
            asked = f"Which of the two happened first: {one}, or {other}?"
            golds, key = (said[index - 1], text), f"{row['name']} order"
            right, wrong = (_last_word(first),), (_last_word(second),)
            questions.append(DialogueQuestion("temporal", key, asked, golds, right, wrong))
        yield [Told(places[index], "user", text)], questions


def _last_word(text: str) -> str:
    return text.split()[-1]


def _pairs(generator: random.Random, somewhere: Callable[[], int]) -> Made:
    for row in DATA["pairs"]:
        values, places = generator.sample(row["values"], 2), _two(somewhere)
        said = tuple(text.format(v=value) for text, value in zip(row["said"], values, strict=True))
        question = DialogueQuestion("multi-session", row["name"], row["asked"][0], said, tuple(values))
        yield [Told(place, "user", text) for place, text in zip(places, said, strict=True)], [question]


def _two(somewhere: Callable[[], int]) -> tuple[int, int]:
    one = other = somewhere()
    while one == other:
        other = somewhere()
    return one, other


def _date(day: int) -> str:
    return f"{day % 28 + 1} {DATA['months'][day // 28]}"


def _core(value: str) -> str:
    """The part of a value that a right answer holds: without its article."""
    return re.sub(r"^(?:an?|the) ", "", value)


def _session(
    facts: list[Told], talk: Iterator[tuple[str, str]], n_tokens: int, generator: random.Random
) -> Iterator[Message]:
    """Exchanges of small talk until there are enough words, the facts spread over them."""
    exchanges: list[tuple[str, str]] = []
    n_words = 0
    while n_words < n_tokens * _WORDS_PER_TOKEN or len(exchanges) < 2:
        exchanges.append(next(talk))
        n_words += sum(len(text.split()) for text in exchanges[-1])
    spots: dict[int, list[Told]] = {}
    for fact in facts:
        spots.setdefault(generator.randrange(len(exchanges)), []).append(fact)
    for index, (user, assistant) in enumerate(exchanges):
        for fact in spots.get(index, ()):
            if fact.role == "user":
                user = f"{user} {fact.text}"
            else:
                yield {"role": "user", "content": str(fact.before)}
                yield {"role": "assistant", "content": f"{fact.text} {generator.choice(_FOLLOW_UPS)}"}
        yield {"role": "user", "content": user}
        yield {"role": "assistant", "content": assistant}


def _small_talk(generator: random.Random) -> Iterator[tuple[str, str]]:
    """Exchanges of two to three sentences with an answer of three to five, one subject each."""
    while True:
        subject = generator.choice(DATA["small talk"])
        fixed: dict[str, str] = {}

        def filled(text: str, fixed: dict[str, str] = fixed) -> str:
            for slot in _SLOT.findall(text):
                values = DATA["quality"] if slot == "quality" else DATA["slots"][slot]
                fixed.setdefault(slot, generator.choice(values))
            return text.format(**fixed)

        user = [filled(text) for text in _picked(subject["user"], generator.randint(2, 3), generator)]
        assistant = [filled(text) for text in _picked(subject["assistant"], generator.randint(3, 5), generator)]
        yield (
            _opened(user, DATA["openers"]["user"], generator),
            _opened(assistant, DATA["openers"]["assistant"], generator),
        )


def _opened(sentences: list[str], openers: list[str], generator: random.Random) -> str:
    """The sentences as one message, some of them with a few words in front."""
    said = []
    for text in sentences:
        if generator.random() < 0.4 and not text.endswith("?"):
            opener = generator.choice(openers)
            rest = text if text.startswith("I ") else text[0].lower() + text[1:]
            text = f"{opener[0].upper()}{opener[1:]}, {rest}"
        said.append(text)
    return " ".join(said)


def _picked(sentences: list[str], n: int, generator: random.Random) -> list[str]:
    """So many of the sentences, in their order."""
    return [sentences[index] for index in sorted(generator.sample(range(len(sentences)), n))]
