"""The haystack generator: deterministic, distinct, of the asked size, with every needle once."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from experiments.haystack import (
    PHRASINGS,
    Needle,
    build_haystack,
    choose_asked,
    docstring_sentences,
    make_needles,
    prose_sentences,
    shuffled_filler,
)


def count_words(texts: Sequence[str]) -> list[int]:
    """Words as tokens."""
    return [len(text.split()) for text in texts]


def numbered() -> Iterator[str]:
    """An endless filler of distinct sentences."""
    for number in itertools.count():
        yield f"The sentence with the number {number} says nothing at all."


def test_needles_are_distinct_and_follow_from_the_seed() -> None:
    needles = make_needles(100, seed=0)
    assert len({needle.key for needle in needles}) == 100
    assert len({needle.value for needle in needles}) == 100
    assert all(len(needle.value) == 7 and needle.value.isdigit() for needle in needles)
    assert all(len(needle.key.split("-")) == 2 for needle in needles)
    assert make_needles(100, seed=0) == needles
    assert make_needles(10, seed=0) == needles[:10]
    assert make_needles(100, seed=1) != needles


def test_every_phrasing_names_the_key() -> None:
    needle = Needle("silver-otter", "1234567")
    assert needle.sentence == "One of the special magic numbers for silver-otter is: 1234567."
    assert len({needle.question(phrasing) for phrasing in PHRASINGS}) == len(PHRASINGS) == 3
    assert all("silver-otter" in needle.question(phrasing) for phrasing in PHRASINGS)
    assert "1234567" not in needle.question(1)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("It is 1234567.", True),
        ("1,234,567", True),
        ("1 234 567", True),
        ("11234567", False),
        ("1234568", False),
        ("", False),
    ],
)
def test_an_answer_is_right_when_it_holds_the_number(answer: str, right: bool) -> None:
    assert Needle("silver-otter", "1234567").answered_by(answer) is right


@pytest.mark.parametrize(("n_tokens", "n_needles"), [(2_000, 100), (5_000, 100), (20_000, 7), (3_000, 0)])
def test_a_haystack_has_its_size_and_every_needle_once_in_order(n_tokens: int, n_needles: int) -> None:
    needles = make_needles(n_needles, seed=3)
    haystack = build_haystack(n_tokens, needles, seed=3, count_tokens=count_words, filler=numbered())
    assert n_tokens <= haystack.n_tokens <= n_tokens + 10
    assert haystack.n_tokens == len(haystack.text.split())
    places = [haystack.text.index(needle.sentence) for needle in needles]
    assert places == sorted(places)
    assert all(haystack.text.count(needle.sentence) == 1 for needle in needles)
    share = len(haystack.text) / max(1, n_needles)
    assert all(abs(place / share - index - 0.5) < 1.5 for index, place in enumerate(places))


def test_a_haystack_follows_from_its_seed() -> None:
    def made(seed: int) -> str:
        return build_haystack(
            4_000, make_needles(20, seed=0), seed=seed, count_tokens=count_words, filler=numbered()
        ).digest

    assert made(0) == made(0)
    assert made(0) != made(1)


def test_too_little_room_or_filler_is_said() -> None:
    with pytest.raises(ValueError, match="needles take"):
        build_haystack(50, make_needles(20, seed=0), seed=0, count_tokens=count_words, filler=numbered())
    with pytest.raises(ValueError, match="filler ends"):
        build_haystack(500, [], seed=0, count_tokens=count_words, filler=["Only this one sentence is here."])


def test_the_asked_needles_are_a_spread_subset() -> None:
    needles = make_needles(100, seed=0)
    asked = choose_asked(needles, 20, seed=0)
    assert len(set(asked)) == 20
    assert asked == sorted(asked, key=needles.index) == choose_asked(needles, 20, seed=0)
    assert choose_asked(needles, 20, seed=1) != asked


def test_only_prose_is_taken_from_docstrings() -> None:
    source = textwrap.dedent('''
        def f(x):
            """Return the first value that is larger than the limit.

            This is a longer explanation of what happens
            when the line is broken. See :func:`g` for more of this kind.

            >>> f(3) and then some more words here
            x = 1
            Parameters ---------- The value of the thing to be found here.
            """
            return "A string that is not a docstring but reads well."
    ''')
    assert list(prose_sentences(source)) == [
        "Return the first value that is larger than the limit.",
        "This is a longer explanation of what happens when the line is broken.",
    ]


def test_sentences_of_a_folder_are_distinct_and_ordered(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "tests/c.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'"""The same words stand in every file here. The words of {name[0]} are not the same."""\n')
    assert docstring_sentences([tmp_path]) == [
        "The same words stand in every file here.",
        "The words of a are not the same.",
        "The words of b are not the same.",
    ]


@pytest.mark.slow
def test_this_environment_has_enough_distinct_sentences() -> None:
    first = list(itertools.islice(shuffled_filler(0), 30_000))
    assert len({sentence.casefold() for sentence in first}) == 30_000
    assert not any("magic number" in sentence for sentence in first)
    many = list(itertools.islice(shuffled_filler(0), 120_000))
    assert many[:30_000] == first
    assert len(set(many)) == len(many)
    assert sum(len(sentence.split()) for sentence in many) > 1_000_000
