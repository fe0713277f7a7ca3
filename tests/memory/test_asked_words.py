"""What a question without names asks about, and whether sentences hold it."""

from __future__ import annotations

import pytest

from livingkv.asked_words import asked_words_held, is_in_english


@pytest.mark.parametrize(
    ("question", "sentence", "share"),
    [
        ("What is my horse called?", "My parrot is called Biscuit.", 0.0),
        ("What is my parrot called?", "My parrot is called Biscuit.", 1.0),
        ("Who is my accountant?", "I work for Vale Electric, in the accounts department.", 0.0),
        ("Which code opens my cellar?", "The gate of my garage opens with 1187.", 0.5),
        ("What is the number of my passport?", "The gate of my garage opens with 1187.", 0.0),
        ("When was the roof repaired?", "They are repairing the roofs.", 1.0),
        ("How is it?", "It is fine.", 1.0),
    ],
)
def test_the_share_of_content_words_counts(question: str, sentence: str, share: float) -> None:
    assert asked_words_held(question, ["Something else.", sentence]) == share


def test_the_kind_of_thing_that_is_wanted_need_not_be_said() -> None:
    assert asked_words_held("In which town do I live?", ["I live in Tartu now."]) == 1.0
    assert asked_words_held("In which town does my uncle live?", ["I live in Tartu now."]) == 0.5
    assert asked_words_held("Which florist is it?", ["You could try the bakery."]) == 0.0
    assert asked_words_held("Which bakery is it?", ["You could try the bakery."]) == 1.0


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("我的马叫什么名字?", "我的狗叫小白。"),
        ("猫の名前は何ですか", "犬はポチです。"),
        ("소포를 어디에 맡겼나요?", "기사님이 상자를 맡겼다고 합니다."),
    ],
)
def test_where_words_cannot_be_told_apart_nothing_is_held_against_an_answer(question: str, sentence: str) -> None:
    assert asked_words_held(question, [sentence]) == 1.0


def test_endings_that_pile_up_are_seen_through_outside_of_english() -> None:
    assert asked_words_held("Toplantı hangi güne ertelendi?", ["Toplantıyı perşembeye erteledik."]) == 1.0
    assert asked_words_held("Missä mökille on avain?", ["Mökin avaimet ovat siellä."]) == pytest.approx(2 / 3)
    assert is_in_english("where is it") and not is_in_english("Missä avain on?")
