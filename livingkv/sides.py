"""The two things that a question joins by "and": each is told somewhere, as a rule not in one sentence.

Knows words, in any script; knows no store and no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import regex

from livingkv.answer_check import content_words
from livingkv.asked_words import is_in_english
from livingkv.index.analysis import folded
from livingkv.naming import Named
from livingkv.passages import Judged
from livingkv.question import LIST_REQUEST, Name, names_held

_TOKEN = regex.compile(r"[\p{L}\p{M}\p{N}_'’-]+|&")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_AND = frozenset(
    word
    for line in (
        "and & und en og och ja et e y ed és și a i ve dan",  # in Latin letters
        "и й та και و और ו",
    )
    for word in line.split()
)
_MOST_WORDS = 5
_LEAST = 3
_SHORT = 5
"""Words of grammar are short, in most languages: "ma" and "mon", "мою" and "моего"."""


def sides_of(question: str) -> tuple[Name, ...]:
    """The two sides of the first conjunction that joins things: of each the words that say something and are not in the
    other. Empty where there is none, and in scripts without spaces.

    The sides are taken to be built alike: "of my office alarm and of my garage gate" are four words each, because the
    word behind "and" stands four words before it as well. Otherwise a side is one word.
    """
    tokens = list(_TOKEN.finditer(question))
    for place in range(1, len(tokens) - 1):
        is_joint = folded(tokens[place][0]) in _AND and _follows(question, tokens, place)
        if is_joint and (sides := _around(question, tokens, place)):
            return sides
    return ()


def sentences_of_sides(sides: Sequence[Name], judged: Sequence[Judged]) -> Named | None:
    """For each of two sides the best hit that holds it whole; None unless there is one for each and no hit has both."""
    if not sides or any(names_held(sides, [hit.sentence.text]) == 1.0 for hit in judged):
        return None
    best = [next((hit for hit in judged if names_held([side], [hit.sentence.text]) == 1.0), None) for side in sides]
    found = tuple(hit for hit in best if hit is not None)
    return Named(found, tuple(sides), len(found), is_chain=True) if len(found) == len(sides) else None


def ways_to_ask(question: str, both: Named) -> tuple[str, ...]:
    """What is read as the question: first as it is, then, in English, with the request for a list of nothing else. Such
    a list says by its order alone what is whose, so it is asked for only where it is read in that order."""
    one, other = (hit.sentence for hit in both.hits)
    is_in_order = (one.session_id, one.token_lo) < (other.session_id, other.token_lo)
    return (question, question + LIST_REQUEST) if is_in_order and is_in_english(question) else (question,)


def tells_of_both(answer: str, sides: Sequence[Name]) -> bool:
    """Whether an answer names all of the sides or none: one that names a single side says of it what may be another's,
    or leaves the other out."""
    named = [names_held([side], [answer]) == 1.0 for side in sides]
    return all(named) or not any(named)


def _around(question: str, tokens: Sequence[regex.Match[str]], place: int) -> tuple[Name, ...]:
    n, n_grammar = _alike(question, tokens, place)
    one = _telling(tokens[place - n + n_grammar : place])
    after = _telling(tokens[place + 1 + n_grammar : place + 2 + _MOST_WORDS])
    other = [match for match in after if match.start() < tokens[min(place + n, len(tokens) - 1)].end()] or after[:1]
    common = {folded(match[0]) for match in one} & {folded(match[0]) for match in other}
    sides = [[match for match in side if folded(match[0]) not in common] for side in (one, other)]
    if not all(sides):
        return ()
    return tuple(Name(tuple(match[0] for match in side), side[0].start(), side[-1].end()) for side in sides)


def _alike(question: str, tokens: Sequence[regex.Match[str]], place: int) -> tuple[int, int]:
    """How many words a side has, 1.._MOST_WORDS, by the word that opens both; and how many of them only open it."""
    opening = folded(tokens[place + 1][0])
    before = []
    for n in range(1, min(_MOST_WORDS, place) + 1):
        if not _follows(question, tokens, place - n + 1):
            break
        before.append(folded(tokens[place - n][0]))
    if opening in before:
        return before.index(opening) + 1, 0
    return next(((n, 1) for n, word in enumerate(before, 1) if n > 1 and _are_alike(word, opening)), (1, 0))


def _follows(question: str, tokens: Sequence[regex.Match[str]], place: int) -> bool:
    """Whether nothing but space is between a word and the one before it."""
    return not question[tokens[place - 1].end() : tokens[place].start()].strip()


def _are_alike(one: str, other: str) -> bool:
    return max(len(one), len(other)) <= _SHORT and one[0] == other[0]


def _telling(tokens: Sequence[regex.Match[str]]) -> list[regex.Match[str]]:
    """Those that say something; in most languages the shortest words do not."""
    return [
        match
        for match in tokens
        if len(match[0]) >= _LEAST and content_words(match[0]) and not _UNSPACED.search(match[0])
    ]
