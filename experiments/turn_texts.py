"""What is stored, said and asked in turns over a large memory: real paragraphs, and questions about some of them.

Knows paragraphs; knows no store. Everything follows from the paragraphs and the seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_QUOTED_WORDS = 8
_LEADS = ("What do the notes say about", "Remind me:", "Where did I read", "Is there anything on")


class TurnTexts:
    """`paragraphs` in a random order: the last fifth is said in turns, the others are stored, as many as are taken."""

    def __init__(self, paragraphs: Sequence[str], seed: int) -> None:
        self._random = random.Random(f"turns {seed}")
        order = list(paragraphs)
        self._random.shuffle(order)
        n_said = len(order) // 5
        self._said, self._waiting = order[:n_said], order[n_said:]
        self.stored: list[str] = []

    def next_stored(self, n: int) -> list[str]:
        """The next paragraphs to store. Raises ValueError when there are no more."""
        first = len(self.stored)
        if first + n > len(self._waiting):
            raise ValueError(f"there are {len(self._waiting)} paragraphs to store and no more; ask for less text")
        self.stored += self._waiting[first : first + n]
        return self._waiting[first : first + n]

    def quoted(self, number: int) -> str:
        """Some words in a row of a stored paragraph, which the question of this number asks for."""
        words = self.stored[(number * 7919) % len(self.stored)].split()
        start = max(0, (len(words) - _QUOTED_WORDS) // 2)
        return " ".join(words[start : start + _QUOTED_WORDS])

    def question(self, number: int) -> str:
        """A question about a stored paragraph."""
        return f"{_LEADS[number % len(_LEADS)]} {self.quoted(number)}?"

    def is_found(self, number: int, texts: Sequence[str]) -> bool:
        """One of the texts holds what the question asks for."""
        return any(self.quoted(number) in " ".join(text.split()) for text in texts)

    def messages(self, number: int) -> list[dict[str, str]]:
        """What is said in the turn of this number: the question with some new words, and a reply of new words."""
        user, reply = (self._said[(2 * number + more) % len(self._said)] for more in (0, 1))
        return [
            {"role": "user", "content": f"{self.question(number)} {user}"},
            {"role": "assistant", "content": reply},
        ]
