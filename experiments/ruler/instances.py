"""What every RULER task makes, one text with one question, and how its answer is scored.

Knows the shape of a task and how a text is fitted to a length; knows no task and no model. RULER is arXiv 2404.06654.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.haystack import CountTokens

FRAME_TOKENS = 48
"""Room for the chat template around text and question."""

_STEPS = 10
_WORD = re.compile(r"(?<![A-Za-z'])[a-z]{4,10}(?![A-Za-z'])")


@dataclass(frozen=True, slots=True)
class Instance:
    """One text and one question. `references` are the strings that a right answer contains, all of them.

    max_tokens: the longest answer. n_tokens: the text alone.
    """

    task: str
    text: str
    question: str
    references: tuple[str, ...]
    max_tokens: int
    n_tokens: int

    @property
    def digest(self) -> str:
        """SHA-256 of text, question and references."""
        parts = "\0".join((self.text, self.question, *self.references))
        return hashlib.sha256(parts.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Draft:
    """A text of some size, before it is known whether it fits."""

    text: str
    question: str
    references: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Materials:
    """What texts are made of: sentences of prose, and words of one kind (lower case, 4 to 10 letters), all distinct."""

    sentences: tuple[str, ...]
    words: tuple[str, ...]

    @classmethod
    def of(cls, sentences: Sequence[str]) -> Materials:
        """The sentences and the words in them, in a fixed order."""
        return cls(tuple(sentences), tuple(sorted({word for text in sentences for word in _WORD.findall(text)})))


def string_match_all(answer: str, references: Sequence[str]) -> float:
    """RULER's score: the share of the references that stand in the answer, upper or lower case."""
    said = answer.lower()
    return sum(reference.lower() in said for reference in references) / len(references)


def fitted(
    task: str, build: Callable[[int], Draft], *, n_tokens: int, max_tokens: int, count_tokens: CountTokens
) -> Instance:
    """The largest text found with which text, question, chat frame and answer take at most `n_tokens`.

    `build(size)` makes the text of any size from 1 on; a larger size is a longer text. Ends within 2% of the room where
    sizes are that fine. Raises ValueError when not even size 1 fits.
    """
    best: Instance | None = None
    size, before = 8, (0, 0)
    tried: set[int] = set()
    for _ in range(_STEPS):
        draft = build(size)
        tried.add(size)
        text, question = count_tokens([draft.text, draft.question])
        room = n_tokens - max_tokens - FRAME_TOKENS - question
        if text <= room and (best is None or text > best.n_tokens):
            best = Instance(task, draft.text, draft.question, draft.references, max_tokens, text)
        if 0.98 * room <= text <= room:
            break
        slope = max(0.5, (text - before[1]) / (size - before[0]))
        before, size = (size, text), max(1, size + int((0.99 * room - text) / slope))
        if size in tried:
            break
    if best is None:
        raise ValueError(f"{task} does not fit into {n_tokens} tokens; ask for more")
    return best
