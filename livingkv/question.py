"""What a question asks by: the names in it, and whether it asks about everything at once.

Knows words, in any script; knows no store and no model.
"""

from __future__ import annotations

import regex

from livingkv.index.analysis import folded, terms
from livingkv.index.question_words import QUESTION_WORDS

_WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]+(?:[-./:@'’&][\p{L}\p{M}\p{N}_]+)*")
_SENTENCE_START = regex.compile(r"(?:^|[.!?:;。！？…\n]\s*|[\"'“”«»(\[¿¡]\s*)$")
_POSSESSIVE = regex.compile(r"['’]s?$")
_INNER_CAPITAL = regex.compile(r"\p{Ll}\p{Lu}")
_LEAST_STEM = 4

_OVER_ALL = regex.compile(
    r"\bhow (?:many|often)\b|\bhow much (?:in (?:all|total)|altogether)\b"
    r"|\b(?:list|name|enumerate|count|sum up)\b.*\b(?:all|every|each)\b"
    r"|\b(?:total|overall) (?:number|count|amount)\b|\bin total\b"
    r"|\bwie (?:viele|oft)\b|\bcombien d[e']|\bcuánt[oa]s\b|\bquant[ie]\b|\bhoeveel\b|\bhvor mange\b|\bhur många\b"
    r"|\bсколько\b|有(?:多少|几)|いくつ|何(?:個|人|回|件)|몇",
    regex.IGNORECASE,
)


def names_in(question: str) -> tuple[str, ...]:
    """The words by which a question names what it is about, as it spells them: without a possessive ending.

    A name is a word with a digit, an inner capital or a joint (`ref-14`, `tenantId`, `lonely-rocket`), or one that is
    capitalised inside a sentence. Where a language writes common nouns with a capital, they count as well.
    """
    found: dict[str, None] = {}
    for match in _WORD.finditer(question):
        word = _POSSESSIVE.sub("", match[0])
        if word and folded(word) not in QUESTION_WORDS and _is_name(word, question[: match.start()]):
            found[word] = None
    return tuple(found)


def _is_name(word: str, before: str) -> bool:
    if any(sign.isdigit() for sign in word) or _INNER_CAPITAL.search(word):
        return True
    if regex.search(r"[-_./:@&]", word):
        return True
    return word[0].isupper() and len(word) > 1 and not _SENTENCE_START.search(before)


def names_held(names: tuple[str, ...], text: str) -> float:
    """The share of the names that a text holds, 0..1; 1 when there are none.

    Letters' case does not count; a word may be inflected at its end, a joined name must be there whole.
    """
    if not names:
        return 1.0
    known = set(terms(text))
    return sum(_holds(known, name) for name in names) / len(names)


def _holds(known: set[str], name: str) -> bool:
    whole = folded(name)
    if whole in known:
        return True
    if regex.search(r"[-_./:@&]", name) or any(sign.isdigit() for sign in name):
        return set(terms(name)) <= known
    stem = whole[: max(_LEAST_STEM, len(whole) - 2)]
    return len(whole) >= _LEAST_STEM and any(term.startswith(stem) and len(term) <= len(whole) + 3 for term in known)


def asks_about_all(question: str) -> bool:
    """True when the answer depends on everything that is stored, not on one passage: a count, a sum, a full list."""
    return _OVER_ALL.search(question) is not None
