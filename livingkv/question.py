"""What a question asks by: the names in it, and whether it asks about everything at once.

Knows words, in any script; knows no store and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import regex

from livingkv.index.analysis import folded, terms
from livingkv.index.question_words import QUESTION_WORDS

_WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]+(?:[-./:@'’&][\p{L}\p{M}\p{N}_]+)*")
_SENTENCE_START = regex.compile(r"(?:^|[.!?:;。！？…\n]\s*|[\"'“”«»(\[¿¡]\s*)$")
_POSSESSIVE = regex.compile(r"['’]s?$")
_INNER_CAPITAL = regex.compile(r"\p{Ll}\p{Lu}")
_JOINT = regex.compile(r"[-_./:@&]")
_LEAST_STEM, _LEAST_INFLECTED = 3, 4
_LEAST_DIGITS = 3

LIST_REQUEST = " Answer with the list alone."

_MOST_OFTEN = regex.compile(
    r"\b(?:most|least) (?:common|frequent|frequently|often)\b|\b(?:häufigst|seltenst)"
    r"|\bles? plus (?:souvent|fréquent)|\bmás frecuentes?\b"
    r"|\bpiù frequent[ei]\b|\bчаще всего\b|最常|出现.*最多|最も(?:多|よく)",
    regex.IGNORECASE,
)
_ALL_OF_IN_ENGLISH = regex.compile(
    r"\b(?:what|which|who)(?: (?:are|were|is|was))? (?:all|both)\b"
    r"|(?:^|[.!?:,;]\s*|\b(?:please|you|to|and) )(?:list|name|enumerate|find|tell me|give me|show me)\b"
    r".*\b(?:all|both|every|each)\b",
    regex.IGNORECASE,
)
_ALL_OF = regex.compile(
    r"\bnenne\b.*\balle\b|\bwelche\b.*\balle\b|\b(?:quels|quelles) sont tous?t?e?s?\b|\bcuáles son tod[oa]s\b"
    r"|\bquali sono tutt[ie]\b|\b(?:перечисли|назови)\b.*\bвсе[хй]?\b|(?:所有|全部).*(?:什么|哪些|列)|(?:列出|すべて)",
    regex.IGNORECASE,
)
_OVER_ALL = regex.compile(
    r"\bhow (?:many|often)\b|\bhow much (?:in (?:all|total)|altogether)\b"
    r"|\b(?:count|sum up|add up)\b.*\b(?:all|every|each)\b"
    r"|\b(?:total|overall) (?:number|count|amount)\b|\bin total\b"
    r"|\bwie (?:viele|oft)\b|\bcombien d[e']|\bcuánt[oa]s\b|\bquant[ie]\b|\bhoeveel\b|\bhvor mange\b|\bhur många\b"
    r"|\bсколько\b|有(?:多少|几)|いくつ|何(?:個|人|回|件)|몇",
    regex.IGNORECASE,
)

_SUMMED_UP = regex.compile(
    r"\b(?:in (?:all|total)|altogether|all together|total|overall|count|sum up|add up)\b"
    r"|\b(?:insgesamt|en tout|en total|in totale)\b",
    regex.IGNORECASE,
)


_NUMBER = regex.compile(
    r"\p{N}|\b(?:no|none|zero|one|once|two|twice|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozens?|both|pair"
    r"|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty(?:-\w+)?|hundreds?|thousands?|millions?|half|single|several|many|few)\b",
    regex.IGNORECASE,
)

MOST_SIGNS = 2000
"""Of a longer question its end is looked at: that is where people ask."""

_SIGNS_BEFORE = 64


class Name(NamedTuple):
    """What a question calls something by: its words, and where they stand, characters [lo, hi)."""

    words: tuple[str, ...]
    lo: int
    hi: int


def asked_end(question: str) -> str:
    """The last MOST_SIGNS signs of a question, runs of white space as one sign: what patterns are looked for in."""
    plain: str = regex.sub(r"\s+", " ", question[-8 * MOST_SIGNS :])
    return plain[-MOST_SIGNS:]


def names_in(question: str) -> tuple[Name, ...]:
    """The names in a question, as it spells them, without a possessive ending; words that follow one another are one.

    A name is a word with a digit, an inner capital or a joint (`ref-14`, `tenantId`, `lonely-rocket`), or one that is
    capitalised inside a sentence. Where a language writes common nouns with a capital, they count as well. Of a longer
    question the last MOST_SIGNS signs are looked at.
    """
    found: list[Name] = []
    for match in _WORD.finditer(question, max(0, len(question) - MOST_SIGNS)):
        word = _POSSESSIVE.sub("", match[0])
        before = question[max(0, match.start() - _SIGNS_BEFORE) : match.start()]
        if not word or folded(word) in QUESTION_WORDS or not _is_name(word, before):
            continue
        lo, hi = match.start(), match.start() + len(word)
        if found and question[found[-1].hi : lo] == " ":
            found[-1] = Name((*found[-1].words, word), found[-1].lo, hi)
        else:
            found.append(Name((word,), lo, hi))
    return tuple(found)


def _is_name(word: str, before: str) -> bool:
    if any(sign.isdigit() for sign in word) or _INNER_CAPITAL.search(word):
        return True
    if _JOINT.search(word):
        return True
    return word[0].isupper() and len(word) > 1 and not _SENTENCE_START.search(before)


def names_held(names: Sequence[Name], sentences: Sequence[str]) -> float:
    """The share of the names that the sentences hold, 0..1; 1 when there are none. A name counts by the most of its
    words that stand together in one sentence.

    Letters' case does not count; a word may be inflected at its end, a joined one must be there whole.
    """
    if not names:
        return 1.0
    known = [set(terms(sentence)) for sentence in sentences]
    shares = [max((_share(words, name) for words in known), default=0.0) for name in names]
    return sum(shares) / len(names)


def _share(known: set[str], name: Name) -> float:
    return sum(_holds(known, word) for word in name.words) / len(name.words)


def _holds(known: set[str], word: str) -> bool:
    whole = folded(word)
    if whole in known:
        return True
    if _JOINT.search(word) or any(sign.isdigit() for sign in word):
        return set(terms(word)) <= known
    stem = whole[: max(_LEAST_STEM, len(whole) - 2)]
    return len(whole) >= _LEAST_INFLECTED and any(
        term.startswith(stem) and len(term) <= len(whole) + 3 for term in known
    )


def held_names(names: Sequence[Name], sentence: str) -> frozenset[Name]:
    """The names that a sentence holds whole."""
    known = set(terms(sentence))
    return frozenset(name for name in names if _share(known, name) == 1.0)


def identifiers_in(sentence: str) -> tuple[Name, ...]:
    """The words that are made to be told from all others: with a digit, an inner capital or a joint, or all capitals.

    Each stands alone, wherever in the sentence it is.
    """
    found: list[Name] = []
    for match in _WORD.finditer(sentence):
        word = _POSSESSIVE.sub("", match[0])
        coded = any(sign.isdigit() for sign in word) or _INNER_CAPITAL.search(word) or _JOINT.search(word)
        if coded or (len(word) > 1 and word.isupper()):
            found.append(Name((word,), match.start(), match.start() + len(word)))
    return tuple(found)


def is_small_number(name: Name) -> bool:
    """True for a number of one or two digits: it may be how many of something are asked for."""
    return len(name.words) == 1 and name.words[0].isdigit() and len(name.words[0]) < _LEAST_DIGITS


def asks_about_all(question: str) -> bool:
    """True when the answer depends on everything that is stored, not on one passage: a count, a sum, a full list, what
    is most frequent."""
    end = asked_end(question)
    return asks_for_all_of(end) or asks_what_is_frequent(end) or _OVER_ALL.search(end) is not None


def asks_for_all_of(question: str) -> bool:
    """True for a full list: all that fits the question is wanted, not the best of it."""
    return (_ALL_OF_IN_ENGLISH.search(question) or _ALL_OF.search(question)) is not None


def with_list_request(question: str) -> str:
    """A question that asks for a list in English, with the request for nothing else behind it: a small model else
    spends its tokens on saying what it will list. Any other question as it is."""
    return question + LIST_REQUEST if _ALL_OF_IN_ENGLISH.search(question) else question


def asks_for_a_number(question: str) -> bool:
    """True for "how many" and the like where one sentence may state the number, False where all is to be summed up."""
    end = asked_end(question)
    if asks_for_all_of(end) or asks_what_is_frequent(end) or _SUMMED_UP.search(end):
        return False
    return _OVER_ALL.search(end) is not None


def tells_a_number(answer: str) -> bool:
    """Whether a number stands in an English answer, in digits or as a word."""
    return _NUMBER.search(answer) is not None


def asks_what_is_frequent(question: str) -> bool:
    """True when words or things are to be ranked by how often they occur."""
    return _MOST_OFTEN.search(question) is not None
