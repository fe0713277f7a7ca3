"""Byte-exact sentences of a text in any language.

Knows where sentences begin and end, and nothing of tokens, models or stores. Boundaries inside a paragraph come from
the `sentencex` library; this module finds the paragraphs, lines and list items to give to it, keeps every byte, and
bounds the length of a sentence. Which lines stay whole is known to `livingkv.line_kinds`. Reading and checking of
sources lives in `livingkv.sources`, offered here too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter
from typing import NamedTuple, TypeVar

import regex
import sentencex

from livingkv.errors import InputError
from livingkv.line_kinds import WHOLE_LINE_CHARS, is_whole
from livingkv.sources import check_text, read_source, walk_sources

__all__ = ["SentenceSpan", "check_text", "read_source", "split_sentences", "walk_sources"]

_NEWLINES = "\n\r\u2028\u2029"
_LINE = regex.compile(  # a line, then the blank lines after it
    r"([^\n\r\u2028\u2029]*)(?:\r\n|[\n\r\u2028\u2029]|\Z)((?:[^\S\n\r\u2028\u2029]*+[\n\r\u2028\u2029])*+)"
)
_SURROGATE = regex.compile(r"[\ud800-\udfff]")
_FENCE = regex.compile(r"\s*(```|~~~)")
_LIST_ITEM = regex.compile(r"\s*(?:[-*+•‣◦·–]|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])\s")
_MARKER = regex.compile(r"(?:[-*+•‣◦·–]|\(?\d{1,3}[.)]|\(?[A-Za-z][.)]|\(?[ivxIVX]{1,5}[.)]|(?:```|~~~)\s*\w*)")
_WORD = regex.compile(r"\w")
_FIRST_WORD = regex.compile(r"[>\s]*(\S*)")
_EXTENDS_GRAPHEME = regex.compile(r"[\p{M}\u200d\U0001f3fb-\U0001f3ff]")
_BREAK_AFTER = regex.compile(r"[,;:.!?、，；：。！？）」』)\]}]")
_WIDE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")

_WRAPPED_COLUMNS = range(50, 131)
"""Widest line of a paragraph that was broken by hand or by an editor; wider lines are paragraphs of their own."""

_WINDOW_CHARS = 8192  # sentencex is quadratic in unclosed quotation marks, so it never gets more at once

_SCRIPTS = (("ru", r"\p{Cyrillic}"), ("ja", r"[\p{Hiragana}\p{Katakana}]"), ("zh", r"\p{Han}"), ("el", r"\p{Greek}"))
_SCRIPT_LANGUAGES = tuple((language, regex.compile(letters)) for language, letters in _SCRIPTS)
_FUNCTION_WORDS = {
    "en": "the of and to in is that it was for with as on",
    "de": "der die und das den ist nicht mit ein eine auf sich von dem",
    "fr": "le la les et des est que dans une pour pas sur du",
    "es": "el los y que las por una con para del es como",
    "it": "il che di e della per un non sono con gli è",
    "pt": "o os e que não uma para com do da em é",
    "nl": "de het een en van niet dat op zijn met voor",
    "pl": "i w nie na się z do to jest że jak",
    "tr": "ve bir bu için ile de da çok olarak ne",
}


T = TypeVar("T")
_Block = tuple[int, int, bool]
_Pair = tuple[int, int]
_PACE_S = 0.02
"""From one call of `between` to the next, about."""


class SentenceSpan(NamedTuple):
    """A half-open span of bytes."""

    byte_lo: int
    byte_hi: int


class _Line(NamedTuple):
    lo: int
    content: str
    hi: int


def split_sentences(
    text: bytes, *, max_bytes: int = 1024, between: Callable[[], None] | None = None
) -> list[SentenceSpan]:
    """The sentences of `text` as spans that tile it: the first begins at 0, each ends where the next begins.

    Newlines and blank lines belong to the end of the sentence before them, a run of spaces to the start of the sentence
    after it (tokens of byte-level BPE begin with their space). A sentence longer than `max_bytes` is cut at whitespace,
    else after punctuation, else between graphemes, never inside a code point. A marker that stands alone ("3.", "- ")
    joins what follows. Takes time linear in `len(text)`. Bytes that are not UTF-8 stay where they are. `between` is
    called every few hundredths of a second: a text of many megabytes takes many seconds.

    Raises InputError when `max_bytes` is below 16.
    """
    if max_bytes < 16:
        raise InputError("max_bytes", max_bytes, "16 or more are needed to hold a character")
    if not text:
        return []
    chars = text.decode("utf-8", "surrogateescape")
    paced = partial(_paced, between=between)
    offsets = [0, *_joined(chars, _starts(chars, paced), paced), len(chars)]
    one_byte_each = chars.isascii()
    spans: list[SentenceSpan] = []
    byte_lo = 0
    for lo, hi in paced(itertools.pairwise(offsets)):
        byte_hi = byte_lo + (hi - lo if one_byte_each else len(chars[lo:hi].encode("utf-8", "surrogateescape")))
        for cut in _length_cuts(text, byte_lo, byte_hi, max_bytes):
            spans.append(SentenceSpan(byte_lo, cut))
            byte_lo = cut
        spans.append(SentenceSpan(byte_lo, byte_hi))
        byte_lo = byte_hi
    return spans


def _paced(items: Iterable[T], *, between: Callable[[], None] | None) -> Iterator[T]:
    """The same items, and a call between some of them."""
    called = perf_counter()
    for item in items:
        yield item
        if between is not None and perf_counter() - called > _PACE_S:
            between()
            called = perf_counter()


def _starts(chars: str, paced: Callable[[Iterable[_Block]], Iterator[_Block]]) -> list[int]:
    """Where sentences begin: ascending offsets of their first character that is not white space."""
    seen = _SURROGATE.sub("\ufffd", chars)
    for sign in _NEWLINES:
        seen = seen.replace(sign, " ")
    latin = _latin_language(seen[: 1 << 16])
    starts: list[int] = []
    for lo, hi, whole in paced(_blocks(chars)):
        stays = hi - lo < 4 or (whole and hi - lo <= WHOLE_LINE_CHARS)
        for length in (hi - lo,) if stays else _sentence_lengths(seen[lo:hi], latin):
            start = lo + length - len(seen[lo : lo + length].lstrip())
            if start < lo + length and not _EXTENDS_GRAPHEME.match(chars, start):
                starts.append(start)
            lo += length
    return starts


def _joined(chars: str, starts: list[int], paced: Callable[[Iterable[_Pair]], Iterator[_Pair]]) -> list[int]:
    """The cuts, in characters, between the sentences that begin at `starts`; markers and stray signs are joined."""
    cuts: list[int] = []
    before = ""
    absorbs_next = opens_paragraph = True  # nothing is cut off before the first sentence
    for lo, hi in paced(itertools.pairwise([*starts, len(chars)])):
        content = chars[lo:hi].rstrip()
        is_marker = _MARKER.fullmatch(content) is not None
        stray = not is_marker and not _WORD.search(content)
        gap = before[len(before.rstrip()) :]
        if before:
            opens_paragraph = len(gap.splitlines()) > 1
        if not absorbs_next and (opens_paragraph or not stray):
            newline = max(gap.rfind(sign) for sign in _NEWLINES)
            cuts.append(lo - len(gap) + newline + 1)
        absorbs_next = is_marker or (stray and (opens_paragraph or absorbs_next))
        before = chars[lo:hi]
    return cuts


def _blocks(chars: str) -> Iterator[tuple[int, int, bool]]:
    """(lo, hi, whole) of what sentencex may see at once: a paragraph, a list item, or a line that stays whole."""
    fence: str | None = None
    run: list[_Line] = []
    for match in _LINE.finditer(chars):
        line = _Line(match.start(), match[1], match.start(2))
        opens = _FENCE.match(line.content)
        whole = fence is not None or opens is not None or is_whole(line.content)
        if whole:
            yield from _paragraphs(run)
            run = []
            if opens is None or opens[1] != fence:  # the end of a fence stays with the line before it
                yield line.lo, line.hi, True
        elif line.content:
            run.append(line)
        if match[2] or not line.content.strip():
            yield from _paragraphs(run)
            run = []
        if opens:
            fence = opens[1] if fence is None else None if fence == opens[1] else fence
    yield from _paragraphs(run)


def _paragraphs(run: list[_Line]) -> Iterator[tuple[int, int, bool]]:
    """Consecutive lines of prose as blocks: a line goes on in the next one only where it was wrapped."""
    widths = [len(line.content) + len(_WIDE.findall(line.content)) for line in run]
    column = max(widths, default=0)
    lo = 0
    for index, line in enumerate(run):
        following = run[index + 1].content if index + 1 < len(run) else ""
        goes_on = column in _WRAPPED_COLUMNS and _wrapped(widths[index], column, following)
        if not (goes_on or _continues_item(run[lo].content, following)):
            yield run[lo].lo, line.hi, False
            lo = index + 1


def _continues_item(first: str, following: str) -> bool:
    """Whether the following line belongs to the list item that starts with the line `first`: it is indented more."""
    indents = [len(line) - len(line.lstrip()) for line in (first, following)]
    is_item = _LIST_ITEM.match(first) is not None and not _LIST_ITEM.match(following)
    return is_item and following.strip() != "" and indents[1] > indents[0]


def _wrapped(width: int, column: int, following: str) -> bool:
    """Whether the first word of the following line would not have fitted on a line of this width."""
    match = _FIRST_WORD.match(following)
    word = match[1] if match else ""
    if not _WORD.search(word) or _LIST_ITEM.match(following):
        return False
    room = 2 if _WIDE.match(word) else len(word) + 1
    return width + room > column and (width >= _WRAPPED_COLUMNS.start or word[0].islower())


def _sentence_lengths(seen: str, latin: str) -> Iterator[int]:
    """Lengths, in characters, of the sentences that sencentex finds; they add up to `len(seen)`."""
    language = latin
    if not seen.isascii():
        language = next((name for name, letters in _SCRIPT_LANGUAGES if letters.search(seen)), latin)
    lo = 0
    while lo < len(seen):
        window = seen[lo : lo + _WINDOW_CHARS]
        lengths = [len(sentence) for sentence in sentencex.segment(language, window)]
        if sum(lengths) != len(window):
            lengths = [len(window)]  # the library promises to keep every character; bytes count more than boundaries
        if lo + len(window) < len(seen) and len(lengths) > 1:
            lengths.pop()  # may go on past the window
        yield from lengths
        lo += sum(lengths)


def _latin_language(sample: str) -> str:
    """The language whose function words are most frequent: it decides which abbreviations end no sentence."""
    words = Counter(sample.casefold().split())
    votes = {name: sum(words[word] for word in listed.split()) for name, listed in _FUNCTION_WORDS.items()}
    return max(votes, key=lambda name: votes[name])


def _length_cuts(text: bytes, lo: int, hi: int, max_bytes: int) -> Iterator[int]:
    """Offsets that cut the bytes from lo to hi into pieces of at most `max_bytes`."""
    while hi - lo > max_bytes:
        room = max_bytes if hi - lo >= 2 * max_bytes else (hi - lo + 1) // 2
        lo = _length_cut(text, lo, room)
        yield lo


def _length_cut(text: bytes, lo: int, room: int) -> int:
    """The best offset for a cut at most `room` bytes after `lo`, and after it."""
    limit = lo + room
    while limit > lo + room - 3 and text[limit] & 0xC0 == 0x80:
        limit -= 1
    window = text[lo:limit].decode("utf-8", "surrogateescape")
    half = len(window) // 2
    cut = max(range(half, len(window)), key=lambda at: (window[at].isspace(), at), default=0)
    if cut and window[cut].isspace():
        cut += window[cut] in _NEWLINES
    else:
        cut = max((match.end() for match in _BREAK_AFTER.finditer(window, half)), default=0)
    if not 0 < cut < len(window):
        ahead = text[lo : limit + 64].decode("utf-8", "surrogateescape")
        starts = (match.start() for match in regex.finditer(r"\X", ahead))
        cut = max((start for start in starts if start <= len(window)), default=0) or len(window)
    return lo + len(window[:cut].encode("utf-8", "surrogateescape"))
