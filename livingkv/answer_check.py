"""Whether an answer says something, and whether what it says stands in the recalled text.

Knows words; knows no model. A small model answers fluently beside the fact that it attends: "the badge number is 28"
where the text says "room H28". What it adds to the question must stand in the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import regex

from livingkv.index.analysis import english_stem, folded
from livingkv.index.question_words import QUESTION_WORDS

_WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]+(?:[-./:@'’,][\p{L}\p{M}\p{N}_]+)*")
_DIGIT_GROUPS = regex.compile(r"(?<=\d)[,\u202f\u00a0](?=\d{3})")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")

_PLAIN = frozenset(
    word
    for line in (
        "a an the of to in on at by for from with and or but not no yes it its he she his her him they them their",
        "this that these those there here as is are was were be been being has have had do does did will would",
        "can could should may might must i you we my your our me us so if then than also very just which who what",
        "when where how why answer question text based provided information given according stated mentioned name",
        "called one ones",
    )
    for word in line.split()
)


@dataclass(frozen=True, slots=True)
class Support:
    """n_new: words of the answer that the question does not hold, function words left out. n_found: those of them
    that the recalled text holds. `share` is 0 for an answer that says nothing new."""

    n_new: int
    n_found: int

    @property
    def share(self) -> float:
        """n_found / n_new."""
        return self.n_found / self.n_new if self.n_new else 0.0


def support(answer: str, question: str, text: str) -> Support:
    """How much of what an answer adds to its question stands in the recalled text.

    Words are compared without case, English endings and separators of thousands; in scripts without spaces, signs are.
    """
    asked, known = _content(question), _content(text)
    new = _content(answer) - asked
    return Support(len(new), len(new & known))


def _content(text: str) -> set[str]:
    plain = _DIGIT_GROUPS.sub("", text)
    found: set[str] = set()
    for match in _WORD.finditer(plain):
        word = folded(match[0].rstrip("'’"))
        word = regex.sub(r"['’]s$", "", word)
        if _UNSPACED.search(word):
            found.update(word)
        elif word not in _PLAIN and word not in QUESTION_WORDS:
            found.add(english_stem(word) if word.isascii() else word)
    return found
