"""What an answer adds to its question must stand in the recalled text."""

from __future__ import annotations

import pytest

from livingkv.answer_check import Support, support
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
