"""RULER's two counting tasks: the most common words of a numbered list, the most frequent words of a coded text.

cwe: ten words 30 times each, all others 3 times, shuffled and numbered; below 4,096 tokens 6 times and once. A solved
small example stands in front. fwe: coded words of six letters whose counts follow a zeta distribution with exponent 2;
the most frequent one is written as dots and is noise, ranks 2 to 4 are the answer.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Callable, Sequence

from experiments.ruler.instances import Draft, Materials

N_COMMON = 10
SHORT_TOKENS = 4096
ALPHA = 2.0
CODED_LETTERS = 6
TOKENS_PER_CODED_WORD = 50
"""The vocabulary of the coded text has one word for so many tokens of the whole."""

_LIST_INTRO = (
    "Below is a numbered list of words. Some of these words appear more often than others. Memorize the ones that "
    "appear most often."
)
_LIST_QUESTION = f"What are the {N_COMMON} most common words in the list?"
_CODED_INTRO = (
    "Read the following coded text and keep track of how often each coded word appears. You will be asked for the "
    "three most frequent coded words."
)
_CODED_QUESTION = (
    "What are the three most frequent words in the coded text? Ignore the dots '...'. Name the three words and "
    "explain nothing."
)


def common_words_builder(materials: Materials, n_tokens: int, seed: str, *, example: bool) -> Callable[[int], Draft]:
    """Gives the list with `size` uncommon words. The builder raises ValueError when there are not enough words."""
    words = list(materials.words)
    random.Random(f"{seed} words").shuffle(words)
    short = n_tokens < SHORT_TOKENS
    n_shown = N_COMMON + (10 if short else 30)
    shown = _example(words[:n_shown], *((3, 1) if short else (10, 3)), seed) if example else ""
    rest = words[n_shown:] if example else words
    times_common, times_other = (6, 1) if short else (30, 3)

    def build(size: int) -> Draft:
        if N_COMMON + size > len(rest):
            raise ValueError(f"{len(rest)} different words are not enough; ask for fewer tokens")
        chosen = rest[: N_COMMON + size]
        text = _numbered(chosen, times_common, times_other, f"{seed} order {size}")
        return Draft(f"{shown}{_LIST_INTRO}\n\n{text}\n", _LIST_QUESTION, tuple(chosen[:N_COMMON]))

    return build


def _numbered(words: Sequence[str], times_common: int, times_other: int, seed: str) -> str:
    """The first N_COMMON of the words `times_common` each, the others `times_other` each, shuffled and numbered."""
    rows = [*words[:N_COMMON]] * times_common + [*words[N_COMMON:]] * times_other
    random.Random(seed).shuffle(rows)
    return " ".join(f"{number}. {word}" for number, word in enumerate(rows, 1))


def _example(words: Sequence[str], times_common: int, times_other: int, seed: str) -> str:
    text = _numbered(words, times_common, times_other, f"{seed} example")
    answer = _numbered(words[:N_COMMON], 1, 0, f"{seed} answer")
    return f"{_LIST_INTRO}\n\n{text}\n\n{_LIST_QUESTION}\n{answer}\n\n"


def frequent_words_builder(n_tokens: int, seed: str) -> Callable[[int], Draft]:
    """Gives the coded text of about `size` words."""
    vocabulary = _coded_words(max(8, n_tokens // TOKENS_PER_CODED_WORD), random.Random(f"{seed} words"))
    vocabulary[0] = "..."

    def build(size: int) -> Draft:
        zeta = math.pi**2 / 6  # of ALPHA = 2
        times = [int(size * rank**-ALPHA / zeta) for rank in range(1, len(vocabulary) + 1)]
        rows = [word for word, n in zip(vocabulary, times, strict=True) for _ in range(n)]
        random.Random(f"{seed} order {size}").shuffle(rows)
        return Draft(f"{_CODED_INTRO}\n\n{' '.join(rows)}\n", _CODED_QUESTION, tuple(vocabulary[1:4]))

    return build


def _coded_words(n: int, generator: random.Random) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < n:
        words["".join(generator.choices(string.ascii_lowercase, k=CODED_LETTERS))] = None
    return list(words)
