"""Generated tokens as text: nothing of a stop string comes out, and what was told is what is returned."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from livingkv.framing import Words
from livingkv.generation import collect
from tests.tiny import tiny_tokenizer

WORDS = Words(tiny_tokenizer())
TEXTS = st.text("ab \nü日", max_size=30)


def plain_search(ids: list[int], stop: list[str]) -> str:
    """The text before the stop string that is whole first; before the one that begins first, if one token ends two."""
    stream, text = WORDS.stream(), ""
    for token in ids:
        text += stream.push(token)
        places = [text.index(word) for word in stop if word in text]
        if places:
            return text[: min(places)]
    return text


@given(TEXTS, st.lists(st.text("ab\nü", min_size=1, max_size=3), max_size=3))
@example("\naa", ["a", "\naa"])  # the second begins before the first, which is whole before it
def test_an_answer_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    told: list[str] = []
    ids = WORDS.encode(text)
    done = collect(iter(ids), WORDS.stream(), len(ids) + 1, stop=stop, on_text=told.append)
    assert "".join(told) == done.text
    assert text.startswith(done.text) and not any(word in done.text for word in stop)
    assert done.text == plain_search(ids, stop)
    assert done.finish == "stop"


def test_the_limit_is_told_apart_from_an_end() -> None:
    ids = WORDS.encode("a long answer")
    assert collect(iter(ids[:2]), WORDS.stream(), 2).finish == "length"
    assert collect(iter(ids[:2]), WORDS.stream(), 3).finish == "stop"
