"""Sides that are measured in turn, and what is made of their numbers."""

from __future__ import annotations

from functools import partial

import pytest

from experiments.plain_hugging_face import prefill_seconds
from experiments.side_by_side import in_turn, ratios, summary


def test_every_side_is_first_once_and_all_are_asked_in_every_round() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = in_turn(3, {name: partial(side, name) for name in "abc"})
    assert order == list("abcbcacab")
    assert found == {"a": [1.0, 6.0, 8.0], "b": [2.0, 4.0, 9.0], "c": [3.0, 5.0, 7.0]}


def test_ratios_are_taken_round_by_round_where_there_are_rounds() -> None:
    assert summary([3.0, 1.0, 2.0]) == {"n": 3, "median": 2.0, "low": 1.0, "high": 3.0}
    assert ratios([10.0, 40.0], [1.0, 2.0]) == {"n": 2, "median": 15.0, "low": 10.0, "high": 20.0}
    assert ratios([100.0], [1.0, 2.0, 4.0])["median"] == 50.0


def test_reading_is_the_area_under_the_times_of_its_blocks() -> None:
    def block(position: int) -> float:
        return 2.0 + position / 1000

    positions = [0, 512, 2048, 8192]
    whole = sum(block(512 * i) + 0.256 for i in range(16))  # a block's own length is in the middle of the trapezoid
    assert prefill_seconds(8192, positions, [block(p) for p in positions]) == pytest.approx(whole)
