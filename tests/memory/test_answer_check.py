"""What an answer adds to its question must stand in the recalled text."""

from __future__ import annotations

import pytest

from livingkv.answer_check import Support, list_support, support, taken_share
from livingkv.checking import unfitted_confidence
from livingkv.confidence import CONFIDENT
from livingkv.question import names_in

QUESTION = "Which number is on Conrad Rhodes's badge?"


@pytest.mark.parametrize(
    ("answer", "sentences", "expected"),
    [
        ("The number on Conrad's badge is 28.", ["The office of Conrad Rhodes is room H28."], Support(0.0, 0.0)),
        ("It is H28.", ["The office of Conrad Rhodes is room H28."], Support(1.0, 1.0)),
        ("It is H28.", ["The office of Ada Rhodes is room H28."], Support(1.0, 0.25)),
        ("It is H28.", ["Conrad Rhodes has an office.", "It is room H28."], Support(1.0, 0.0)),
        ("The number on Conrad Rhodes's badge.", ["anything"], Support(0.0, 0.0)),
        ("1,234,567", ["Conrad Rhodes: 1234567."], Support(1.0, 1.0)),
        ("Two red boxes", ["Conrad Rhodes has two boxes.", "One is red."], Support(1.0, 2 / 3)),
        ("I'm sorry, I don't know.", ["room"], Support(0.0, 0.0)),
        ("", ["room"], Support(0.0, 0.0)),
        ("room", [], Support(0.0, 0.0)),
    ],
)
def test_what_an_answer_adds_is_looked_for(answer: str, sentences: list[str], expected: Support) -> None:
    assert support(answer, QUESTION, names_in(QUESTION), sentences) == expected


def test_without_names_any_sentence_will_do() -> None:
    assert support("鍵は棚", "鍵はどこ", (), ["鍵は棚の上"]) == Support(1.0, 1.0)
    assert support("It is blue.", "which colour is it?", (), ["a blue door", "no"]) == Support(1.0, 1.0)


LISTED = "What are all the numbers for odd-spoon and red-door?"
NUMBERS = [
    "A number for odd-spoon is: 5511.",
    "A number for red-door is: 6622.",
    "A number for odd-spoon is: 7733.",
    "A number for blue-gate is: 9944.",
]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The numbers are 5511, 6622 and 7733.", Support(1.0, 1.0)),
        ("The numbers for odd-spoon and red-door are:\n\n1. 5511\n2. 7733\n3. 6622", Support(1.0, 1.0)),
        ("1. 5511 2. 7733 3. 6622", Support(1.0, 1.0)),
        ("odd-spoon: 5511\nred-door: 6622", Support(1.0, 1.0)),
        ("odd-spoon: 6622\nred-door: 5511", Support(1.0, 0.0)),
        ("5511, 6622, 9944, 1000", Support(0.75, 0.5)),
        ("5511, 5511, 5511, 1000", Support(0.5, 0.5)),
        ("5,511 and 6,622", Support(1.0, 1.0)),
        ("It is 12. That one is 5511.", Support(0.5, 0.5)),
        ("The numbers for odd-spoon and red-door.", Support(0.0, 0.0)),
        ("", Support(0.0, 0.0)),
    ],
)
def test_each_piece_of_a_list_stands_beside_a_name(answer: str, expected: Support) -> None:
    assert list_support(answer, LISTED, names_in(LISTED), NUMBERS) == expected


def test_one_sentence_has_to_bear_a_whole_piece_and_lists_may_have_no_names() -> None:
    assert list_support("7733 boxes", LISTED, names_in(LISTED), [*NUMBERS, "Ten boxes."]) == Support(1.0, 0.5)
    assert list_support("1. plum\n2. fig", "Which words?", (), ["a fig", "no plum"]) == Support(1.0, 1.0)


def test_what_was_read_from_a_whole_text_is_never_sure() -> None:
    question, text = "What are the most common words?", "plum fig plum"
    assert unfitted_confidence("plum", question, text, [0.0, 0.0]) == pytest.approx(0.99 * CONFIDENT)
    assert unfitted_confidence("plum, kiwi", question, text, [0.0]) == pytest.approx(0.495 * CONFIDENT)
    assert unfitted_confidence("plum", question, text, [-1.0]) < 0.4 * CONFIDENT
    assert unfitted_confidence("", question, text, []) == 0.0


def test_the_share_of_sentences_that_a_list_takes_something_from() -> None:
    question, sentences = "All codes of door-17?", ["The code of door-17 is 1119.", "Another code of door-17 is 4711."]
    assert taken_share("1119, 4711", question, sentences) == 1.0
    assert taken_share("1119", question, sentences) == 0.5
    assert taken_share("none", question, sentences) == 0.0
    assert taken_share("plum", question, ["The code of door-17."] * 2) == 1.0
