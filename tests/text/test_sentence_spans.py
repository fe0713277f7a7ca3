"""Properties of sentence spans that hold for every text: they tile it and cut no character."""

from __future__ import annotations

import itertools
import sys
import time

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv.errors import InputError
from livingkv.text import SentenceSpan, split_sentences

_LINE_ENDS = ["\n", "\r\n", "\r", "\u2028", "\u2029", "\n\n"]
_SPACES = [" ", "  ", "\t", "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff"]
_MARKERS = [". ", "3.", "- ", "1) ", "# ", "```", "```py\n", "~~~", "| ", "---\n"]
_ENDS = ["...", "? ", "!", "。", "「", "」", "“", "«", "।", "؟"]
_CLUSTERS = ["👩\u200d👩\u200d👧", "👍🏽", "🇳🇴", "e\u0301", "\ufe0f"]
_WORDS = ["Dr.", "z.B.", "3.14", "the ", "und ", "слово", "漢字", "ไทย", "한글"]
_SIGNS = st.sampled_from([*_LINE_ENDS, *_SPACES, *_MARKERS, *_ENDS, *_CLUSTERS, *_WORDS])
_TEXTS = st.lists(st.one_of(_SIGNS, st.text(max_size=12)), max_size=60).map("".join)


def check_tiles(text: bytes, spans: list[SentenceSpan], max_bytes: int) -> None:
    """Assert everything that is promised of spans whatever the text."""
    offsets = [0, *(span.byte_hi for span in spans)]
    assert [span.byte_lo for span in spans] == offsets[:-1]
    assert offsets[-1] == len(text)
    assert all(0 < span.byte_hi - span.byte_lo <= max_bytes for span in spans)


@settings(max_examples=400, deadline=None)
@given(text=_TEXTS, max_bytes=st.sampled_from([16, 17, 40, 1024]))
def test_spans_tile_any_text_and_cut_no_code_point(text: str, max_bytes: int) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    spans = split_sentences(encoded, max_bytes=max_bytes)
    check_tiles(encoded, spans, max_bytes)
    parts = [encoded[lo:hi].decode("utf-8", "surrogatepass") for lo, hi in spans]
    assert "".join(parts) == text
    for before, after in itertools.pairwise(parts):
        assert not (before.endswith("\r") and after.startswith("\n"))


@settings(max_examples=200, deadline=None)
@given(text=st.binary(max_size=300), max_bytes=st.sampled_from([16, 1024]))
def test_spans_tile_bytes_that_are_not_utf8(text: bytes, max_bytes: int) -> None:
    check_tiles(text, split_sentences(text, max_bytes=max_bytes), max_bytes)


@settings(max_examples=200, deadline=None)
@given(text=_TEXTS)
def test_newlines_end_a_sentence_and_spaces_begin_the_next(text: str) -> None:
    encoded = text.encode()
    parts = [encoded[lo:hi].decode() for lo, hi in split_sentences(encoded, max_bytes=1 << 20)]
    for before, after in itertools.pairwise(parts):
        assert after[0] not in "\n\r\u2028\u2029"
        assert before.rstrip("\n\r\u2028\u2029").strip() != ""
        assert before[-1] in "\n\r\u2028\u2029" or not before[-1].isspace()


@settings(max_examples=100, deadline=None)
@given(words=st.lists(st.text("abcdefg", min_size=1, max_size=9), min_size=1, max_size=80))
def test_a_long_sentence_is_cut_at_white_space(words: list[str]) -> None:
    text = " ".join(words).encode()
    parts = [text[lo:hi] for lo, hi in split_sentences(text, max_bytes=32)]
    assert all(part.startswith(b" ") for part in parts[1:])


@pytest.mark.parametrize("cluster", ["👩\u200d👩\u200d👧", "e\u0301\u0323", "🇳🇴", "กำ", "👍🏽"])
def test_a_long_word_is_cut_between_graphemes(cluster: str) -> None:
    text = (cluster * 400).encode()
    parts = [text[lo:hi].decode() for lo, hi in split_sentences(text, max_bytes=100)]
    assert len(parts) > 1
    assert all(regex.findall(r"\X", part) == [cluster] * (len(part) // len(cluster)) for part in parts)


def test_a_grapheme_longer_than_a_sentence_is_cut_at_a_code_point() -> None:
    text = ("a" + "\u0301" * 5000).encode()
    spans = split_sentences(text, max_bytes=64)
    check_tiles(text, spans, 64)
    for lo, hi in spans:
        text[lo:hi].decode()


def test_nothing_has_no_sentences_and_white_space_is_one() -> None:
    assert split_sentences(b"") == []
    assert split_sentences(b" \n\n ") == [SentenceSpan(0, 4)]


def test_too_small_a_bound_is_refused() -> None:
    with pytest.raises(InputError, match="max_bytes: got 15; 16 or more"):
        split_sentences(b"text", max_bytes=15)


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        "The quick brown fox jumps over 3.14 lazy dogs. ",
        "x",
        "\n",
        "-----\n",
        " ",
        "«x. ",
        "“b. ",
        "今天天气很好。",
        "(a\n",
        ". ",
        "👍",
    ],
)
def test_time_grows_with_the_text_not_with_its_square(unit: str) -> None:
    def seconds(n_bytes: int) -> float:
        text = (unit * (n_bytes // len(unit.encode()))).encode()
        start = time.process_time()
        split_sentences(text)
        return time.process_time() - start

    seconds(10_000)  # warm up
    small, large = seconds(40_000), seconds(320_000)
    assert large < 24 * small + 0.2, f"{sys.version}: {small:.3f} s became {large:.3f} s"
