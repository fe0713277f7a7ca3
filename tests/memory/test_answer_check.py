"""What an answer adds to its question must stand in the recalled text."""

from __future__ import annotations

import pytest

from livingkv.answer_check import Support, support

QUESTION = "Which number is on Conrad Rhodes's badge?"


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("The number on Conrad's badge is 28.", "The office of Conrad Rhodes is room H28.", Support(1, 0)),
        ("It is H28.", "The office of Conrad Rhodes is room H28.", Support(1, 1)),
        ("The number on Conrad Rhodes's badge.", "anything", Support(0, 0)),
        ("1,234,567", "It is 1234567.", Support(1, 1)),
        ("Two red boxes", "two boxes, painted red", Support(3, 3)),
        ("I'm sorry, I don't know.", "room", Support(3, 0)),
        ("鍵は棚", "鍵は棚の上", Support(3, 3)),
        ("", "room", Support(0, 0)),
    ],
)
def test_words_of_the_answer_are_looked_for(answer: str, text: str, expected: Support) -> None:
    assert support(answer, QUESTION, text) == expected


def test_an_answer_that_says_nothing_new_is_not_supported() -> None:
    assert support("Conrad Rhodes's badge", QUESTION, QUESTION).share == 0.0
    assert support("It is H28, I think.", QUESTION, "room H28").share == 0.5
