"""What a question without a name asks about: its content words take the names' place when an answer is checked.

Knows words, in any script; knows no store and no model. "What is my horse called?" has no name, and yet a sentence that
says nothing of a horse does not answer it.
"""

from __future__ import annotations

from collections.abc import Sequence

import regex

from livingkv.answer_check import content_words
from livingkv.index.analysis import folded, terms
from livingkv.question import Name, names_held

_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]+(?:[-./:@&][\p{L}\p{M}\p{N}_]+)*")
_KIND = regex.compile(
    r"\b(?:which|what|whose|welk\w*|welche\w*|quel\w*|qué|cuál\w*|quale|quali|qual|quais|wat|hvilke\w*|hvilket|hva|vilke\w*"
    r"|vilka|jak\w*|któr\w*|hangi|как(?:ой|ая|ое|ие|ого|ом|ую)|як(?:ий|а|е|і)|ποι\w*)\s+$",
    regex.IGNORECASE,
)
_ENGLISH = frozenset(
    word for line in ("what which who whom whose when where why how", "the my is are does did") for word in line.split()
)
_SHORT = 2


def asked_words_held(question: str, sentences: Sequence[str]) -> float:
    """The share of the question's content words that the sentences hold, 0..1; 1 where it has none, and in scripts
    without spaces, where words cannot be told apart.

    A word may be inflected at its end; outside of English, where endings pile up, the same first letters will do. The
    kind of thing that is wanted ("in which town", "what colour") need not stand there: it counts where that helps.
    """
    if _UNSPACED.search(question):
        return 1.0
    known = set[str]() if is_in_english(question) else {term for sentence in sentences for term in terms(sentence)}
    all_held: list[bool] = []
    rest_held: list[bool] = []
    for match in _WORD.finditer(question):
        word = match[0]
        if len(word) <= _SHORT or not content_words(word):
            continue
        held = names_held([Name((word,), match.start(), match.end())], sentences) == 1.0
        held = held or bool(known and known & set(terms(word)))
        all_held.append(held)
        if not _KIND.search(question[: match.start()]):
            rest_held.append(held)
    return max(_share(all_held), _share(rest_held)) if rest_held else _share(all_held)


def is_in_english(question: str) -> bool:
    """Whether one of the words stands in it that English questions hardly do without."""
    return any(folded(match[0]) in _ENGLISH for match in _WORD.finditer(question))


def _share(held: Sequence[bool]) -> float:
    return sum(held) / len(held) if held else 1.0
