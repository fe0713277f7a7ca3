"""Long texts in pieces of a bounded size: the tokenizer gets one after the other, and others have steps in between.

Knows characters and strings that must stay whole; knows no tokenizer. Where a text is cut depends on nothing but the
text, so that it has the same tokens each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE_CHARS = 1 << 16
"""Tokenised in some hundredths of a second."""

_LINE_END = re.compile(r"\n(?=\S)")
_WORD_END = re.compile(r"\S(?= \S)")
_LONGEST_WHOLE = 256


def pieces_of(text: str, whole: re.Pattern[str], size: int | None = None) -> Iterator[str]:
    """The text in pieces of at most `size` characters, one at least: cut behind lines, else before words, else
    anywhere, but never inside of what matches `whole` (which is shorter than a piece)."""
    size = PIECE_CHARS if size is None else size
    lo = 0
    while len(text) - lo > size:
        hi = _cut(text, lo, lo + size)
        around = max(lo, hi - _LONGEST_WHOLE)
        for match in whole.finditer(text, around, min(len(text), hi + _LONGEST_WHOLE)):
            if lo < match.start() < hi < match.end():
                hi = match.start()
        yield text[lo:hi]
        lo = hi
    yield text[lo:]


def _cut(text: str, lo: int, hi: int) -> int:
    """The last good place to cut between the middle of a piece and its end."""
    middle = (lo + hi) // 2
    for end in (_LINE_END, _WORD_END):
        found = [match.end() for match in end.finditer(text, middle, hi + 2) if match.end() <= hi]
        if found:
            return found[-1]
    return hi
