"""Whether an answer says something, and whether what it says stands in the recalled text.

Knows words; knows no model. A small model answers fluently beside the fact that it attends: "the badge number is 28"
where the text says "room H28". What it adds to the question must stand in the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import regex

from livingkv.index.analysis import english_stem, folded
from livingkv.index.question_words import QUESTION_WORDS
from livingkv.question import Name, names_held

_WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]+(?:[-./:@'’,][\p{L}\p{M}\p{N}_]+)*")
_DIGIT_GROUPS = regex.compile(r"(?<=\d)[,\u202f\u00a0](?=\d{3})")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")

_NUMBERED = regex.compile(r"(?:(?<=^)|(?<=\s))(\d{1,3})[.)](?=\s|$)", regex.MULTILINE)
_BETWEEN_PIECES = regex.compile(r"[\n;、；]|,\s|(?<=[.!?。！？])\s|\s(?:and|und|et|y|e|и)\s", regex.IGNORECASE)

_PART_OF_A_NAME = 0.5
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
    """Shares, 0..1, of what an answer adds to its question; all 0 for one that says nothing new.

    found: of its words, those that stand anywhere in the recalled sentences. bound: at most found, those that stand in
    one sentence together with a name of the question; less where the sentence holds only a part of the name.
    """

    found: float
    bound: float


def support(answer: str, question: str, names: Sequence[Name], sentences: Sequence[str]) -> Support:
    """How much of what an answer adds to its question stands in the recalled sentences, and where; `names` are those of
    the question.

    Words are compared without case, English endings and separators of thousands; function words are left out; in
    scripts without spaces, signs are compared.
    """
    new = content_words(answer) - content_words(question)
    if not new:
        return Support(0.0, 0.0)
    held = [new & content_words(sentence) for sentence in sentences]
    bound = (len(words) * _nearness(names, one) for words, one in zip(held, sentences, strict=True) if words)
    return Support(len(set().union(*held)) / len(new), max(bound, default=0.0) / len(new))


def list_support(answer: str, question: str, names: Sequence[Name], sentences: Sequence[str]) -> Support:
    """As `support`, for an answer that lists several things: each piece of it is judged alone, by the sentence that
    bears it best, and counts by its new words.

    `names`: those of the question, and what led on from them. A piece that holds some of them itself is bound only
    beside one of those. The numbers of a numbered list are not looked for.
    """
    asked, known = content_words(question), [content_words(sentence) for sentence in sentences]
    n_new, n_bound, found = 0, 0.0, 0
    for piece in _pieces(answer):
        new = content_words(piece) - asked
        own = [name for name in names if names_held([name], [piece]) == 1.0] or names
        held = [new & words for words in known]
        bound = (len(words) * _nearness(own, one) for words, one in zip(held, sentences, strict=True) if words)
        n_new += len(new)
        n_bound += max(bound, default=0.0)
        found += len(set().union(*held))
    return Support(found / n_new, n_bound / n_new) if n_new else Support(0.0, 0.0)


def taken_share(answer: str, question: str, sentences: Sequence[str]) -> float:
    """The share of the sentences from which a list takes something, 0..1: a word that is theirs alone. Sentences
    without one are not counted; 1 where none has one."""
    said, asked = content_words(answer), content_words(question)
    known = [content_words(sentence) - asked for sentence in sentences]
    taken = []
    for index, words in enumerate(known):
        own = words - set().union(*known[:index], *known[index + 1 :])
        if own:
            taken.append(bool(own & said))
    return sum(taken) / len(taken) if taken else 1.0


def _pieces(answer: str) -> list[str]:
    """The parts of a list, different ones only: items of a numbered list, lines, what stands between commas."""
    cut, lo, expected = [], 0, 1
    for match in _NUMBERED.finditer(answer):
        if int(match[1]) == expected:  # "it was 12. The next" is no item
            cut.append(answer[lo : match.start()])
            lo, expected = match.end(), expected + 1
    parts = (part.strip() for item in (*cut, answer[lo:]) for part in _BETWEEN_PIECES.split(item))
    return list(dict.fromkeys(part for part in parts if part))


def _nearness(names: Sequence[Name], sentence: str) -> float:
    """1 for a sentence with a whole name of the question, or a question without names; a part of a name says less."""
    if not names:
        return 1.0
    best = max(names_held([name], [sentence]) for name in names)
    return best if best == 1.0 else best * _PART_OF_A_NAME


def content_words(text: str) -> set[str]:
    """The words of a text that say something, without case and English endings; signs in scripts without spaces."""
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
