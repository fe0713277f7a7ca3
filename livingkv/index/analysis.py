"""From text to index terms, in any language, for prose and for code.

Knows characters and words, and nothing of how terms are stored or scored. Terms are NFKC, case-folded and free of white
space. A change of what `terms` returns must raise ANALYSIS_VERSION, so that an older index is rebuilt.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import regex

from livingkv.index.question_words import QUESTION_WORDS

ANALYSIS_VERSION = 1
MAX_TERM_CHARS = 64

_MOST_KNOWN = 1 << 16
_QUESTION_WORD_WEIGHT = 0.2
_VARIANT_WEIGHT = 0.5
_PREFIX_CHARS = 4

_COMPOUND = regex.compile(r"[A-Za-z](?:\+\+|\#)(?!\w)|[\p{L}\p{M}\p{N}_]+(?:[-.:/@'’‐‑,][\p{L}\p{M}\p{N}_]+)*")
_JOINTS = regex.compile(r"[-.:/@'’‐‑,_]+|(?<=[\p{Ll}\p{N}])(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll})")
_NUMBER = regex.compile(r"\p{Nd}+(?:[.,:]\p{Nd}+)*")
_GROUPED = regex.compile(r"\p{Nd}{1,3}(?:,\p{Nd}{3})+(?:\.\p{Nd}+)?")
_UNIT = regex.compile(r"(\p{Nd}+)(\p{L}{1,4})|(\p{L}{2,})(\p{Nd}+)")
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_SCRIPT_RUN = regex.compile(rf"([{_UNSPACED}][{_UNSPACED}\p{{M}}]*)|(\p{{Hangul}}+)|([^{_UNSPACED}\p{{Hangul}}]+)")
_LETTERS = regex.compile(r"[\p{L}\p{M}]+")
_LATIN = regex.compile(r"\p{Latin}")


def terms(text: str) -> list[str]:
    """The terms of a sentence in order, with repeats: every word, and the variants by which it may be asked for.

    Identifiers, paths and hyphenated words stand whole as well as split; numbers stand exact, without separators of
    thousands; scripts without spaces as pairs of neighbouring graphemes. Variants of a word are the word without
    accents, an English word without its ending ("~"), and its first letters ("^": inflection in most languages happens
    at the end; McNamee and Mayfield, Character N-Gram Tokenization for European Language Text Retrieval, 2004).
    """
    return [found.term for found in _found_terms(text)]


class Analyser:
    """`terms` of many texts: what a word's terms are is worked out once. It holds words of what it was given, so it is
    dropped when the texts are done."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, ...]] = {}

    def terms(self, text: str) -> list[str]:
        """As `terms`."""
        found: list[str] = []
        for compound in _compounds(text):
            known = self._known.get(compound)
            if known is None:
                known = tuple(one.term for one in _compound_terms(compound))
                if len(self._known) < _MOST_KNOWN:
                    self._known[compound] = known
            found += known
        return found


def question_terms(question: str) -> dict[str, float]:
    """The terms to look for and the weight of each: 1 for a word, less for its variants and for question words.

    A question that consists of question words alone keeps them at full weight.
    """
    found = list(_found_terms(question))
    all_ask = all(one.word in QUESTION_WORDS for one in found)
    weights: dict[str, float] = {}
    for one in found:
        weight = one.weight * (_QUESTION_WORD_WEIGHT if one.word in QUESTION_WORDS and not all_ask else 1.0)
        weights[one.term] = max(weight, weights.get(one.term, 0.0))
    return weights


class _FoundTerm(NamedTuple):
    term: str
    weight: float
    word: str  # that it is a variant of


def _found_terms(text: str) -> Iterator[_FoundTerm]:
    for compound in _compounds(text):
        yield from _compound_terms(compound)


def _compounds(text: str) -> Iterator[str]:
    """What stands between white space and punctuation."""
    return (match[0] for match in _COMPOUND.finditer(unicodedata.normalize("NFKC", text)))


def _compound_terms(compound: str) -> Iterator[_FoundTerm]:
    if _NUMBER.fullmatch(compound):
        yield _plain(_number(compound))
        return
    parts = [part for part in _JOINTS.split(_without_possessive(compound)) if part]
    if len(parts) > 1:
        whole = folded(compound)
        yield _plain(whole)
        if "-" in compound and "." not in compound:
            yield _FoundTerm(folded("".join(parts)), _VARIANT_WEIGHT, whole)
    for part in parts:
        for run in _SCRIPT_RUN.finditer(part):
            yield from _run_terms(run)


def _run_terms(run: regex.Match[str]) -> Iterator[_FoundTerm]:
    unspaced, hangul, word = run[1], run[2], run[3]
    if word is not None:
        yield from _word_terms(folded(word))
        return
    if hangul is not None:
        yield _plain(folded(hangul))
    clusters = regex.findall(r"\X", folded(unspaced or hangul))
    if len(clusters) == 1 and unspaced is not None:
        yield _plain(clusters[0])
    for first, second in itertools.pairwise(clusters):
        yield _plain(first + second)


def _word_terms(word: str) -> Iterator[_FoundTerm]:
    yield _plain(word)
    if unit := _UNIT.fullmatch(word):
        yield from (_FoundTerm(part, _VARIANT_WEIGHT, word) for part in unit.groups() if part)
    plain = _without_accents(word)
    if plain != word:
        yield _FoundTerm(plain, _VARIANT_WEIGHT, word)
    if not _LETTERS.fullmatch(plain):
        return
    if plain.isascii():
        yield _FoundTerm(f"~{english_stem(plain)}", _VARIANT_WEIGHT, word)
    if len(plain) >= _PREFIX_CHARS:
        yield _FoundTerm(f"^{plain[:_PREFIX_CHARS]}", _VARIANT_WEIGHT, word)


def _plain(word: str) -> _FoundTerm:
    return _FoundTerm(word, 1.0, word)


def english_stem(word: str) -> str:
    """A lower-case ASCII word without its plural, -ed or -ing ending and final e, where enough is left of it."""
    if len(word) < 4:
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return _without_doubling(word[: -len(ending)])
    if word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def _without_doubling(stem: str) -> str:
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz":
        return stem[:-1]
    return stem[:-1] if stem.endswith("e") and len(stem) > 3 else stem


def _number(number: str) -> str:
    exact = number.replace(",", "") if _GROUPED.fullmatch(number) else number
    return "".join(str(unicodedata.digit(sign, None) if sign.isdigit() else sign) for sign in exact)[:MAX_TERM_CHARS]


def folded(word: str) -> str:
    """The word as terms have it: case-folded, composed, not longer than MAX_TERM_CHARS."""
    return unicodedata.normalize("NFC", word.casefold())[:MAX_TERM_CHARS]


def _without_possessive(word: str) -> str:
    return word[:-2] if word.endswith(("'s", "’s")) else word


def _without_accents(word: str) -> str:
    if word.isascii() or not _LATIN.match(word):
        return word
    return "".join(sign for sign in unicodedata.normalize("NFD", word) if not unicodedata.combining(sign))
