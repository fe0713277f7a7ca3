"""The texts of the needle grid: single needles stand at their depths, one of a kind, and the questions ask for them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

Texts = importlib.import_module("experiments.001_needle.texts")
DEPTHS = (0, 50, 100)


def count(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


@pytest.fixture
def prose(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(seed: int) -> Iterator[str]:
        for index in range(10_000):
            yield f"Sentence {index} of prose {seed} says nothing at all."

    monkeypatch.setattr(Texts, "shuffled_filler", plain)


@pytest.mark.usefixtures("prose")
@pytest.mark.parametrize("sample", [0, 1])
def test_single_needles_stand_at_their_depths(sample: int) -> None:
    text = Texts.Text(4000, 0, sample)
    body = Texts.write_text(text, DEPTHS, 0, count).decode()
    asked = Texts.questions(text, DEPTHS, (1, 2, 3), 0, 0)
    assert len(asked) == 9
    for one in asked:
        assert body.count(one.sentence) == 1
        place = 100 * body.index(one.sentence) / (len(body) - len(one.sentence) - 1)
        assert abs(place - one.depth) < 2
        assert one.key in one.question and one.value not in one.question
        assert Texts.answered(one, f"It is {int(one.value):,}.")


def test_kinds_move_on_from_sample_to_sample() -> None:
    def kinds(sample: int) -> list[Any]:
        return [one.kind for one in Texts.questions(Texts.Text(4000, 0, sample), DEPTHS, (1,), 0, 0)]

    assert kinds(0) == [0, 1, 2]
    assert kinds(10) == [10, 0, 1]


def test_more_depths_than_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 11"):
        Texts.questions(Texts.Text(4000, 0, 0), range(12), (1,), 0, 0)


def test_many_needles_are_asked_for_in_every_phrasing() -> None:
    asked = Texts.questions(Texts.Text(8000, 100, 0), DEPTHS, (1, 3), 5, 0)
    assert [one.phrasing for one in asked] == [1] * 5 + [3] * 5
    assert len({one.key for one in asked}) == 5
