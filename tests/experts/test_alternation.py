"""Whether reading ahead pays is told from times alone."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from livingkv.experts.alternation import Alternation, Fixed, Stretches, Verdict

STRETCHES = Stretches(n_pairs=3, n_tokens=5, n_settling=2, n_kept=40)
N_COMPARED = 2 * 3 * 5


def verdict(pace: Alternation) -> Verdict:
    return pace.verdict


def run(pace: Alternation, n_tokens: int, time_of: Callable[[int, bool], float]) -> list[bool]:
    """Times of tokens from their number and whether experts were read ahead; what was on."""
    was_on = []
    for number in range(n_tokens):
        was_on.append(pace.is_on)
        pace.took(time_of(number, pace.is_on))
    return was_on


def test_stretches_alternate_and_neither_side_is_always_first() -> None:
    pace = Alternation(STRETCHES)
    was_on = run(pace, N_COMPARED, lambda number, on: 1.0)
    assert [was_on[at] for at in range(0, N_COMPARED, 5)] == [True, False, False, True, True, False]
    assert all(was_on[at] == was_on[at - at % 5] for at in range(N_COMPARED))


def test_what_is_faster_stays_on_and_is_compared_again_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "livingkv.experts")
    pace = Alternation(STRETCHES)
    run(pace, N_COMPARED, lambda number, on: (0.08 if on else 0.1) + 0.001 * (number % 3) + 0.001 * number)
    assert verdict(pace) is Verdict.PAYS
    assert pace.on_s is not None and pace.off_s is not None and 0.015 < pace.off_s - pace.on_s < 0.025
    assert run(pace, 40, lambda number, on: 9.0) == [True] * 40
    assert verdict(pace) is Verdict.COMPARING
    run(pace, N_COMPARED, lambda number, on: 0.08 if on else 0.1 + 0.001 * (number % 2))
    assert verdict(pace) is Verdict.PAYS
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["reading ahead pays"]


def test_what_is_slower_is_switched_off_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "livingkv.experts")
    pace = Alternation(STRETCHES)
    run(pace, N_COMPARED, lambda number, on: 0.102 if on else 0.1)
    assert verdict(pace) is Verdict.DOES_NOT_PAY and not pace.is_on
    assert [record.getMessage() for record in caplog.records] == [
        "reading ahead does not pay: a token takes 102.0 ms with it and 100.0 ms without; "
        "it is off for the next 40 tokens"
    ]
    run(pace, 40 + N_COMPARED, lambda number, on: 0.08 if on else 0.1)
    assert verdict(pace) is Verdict.PAYS and len(caplog.records) == 2


def test_noise_is_not_taken_for_a_gain() -> None:
    pace = Alternation(STRETCHES)
    times = iter([0.1, 0.3, 0.2, 0.15, 0.25, 0.22])
    run(pace, N_COMPARED, lambda number, on: next(times) if number % 5 == 0 else 0.2 + 0.001 * (number % 2))
    assert verdict(pace) is Verdict.DOES_NOT_PAY


def test_the_first_tokens_of_a_stretch_do_not_count() -> None:
    pace = Alternation(STRETCHES)
    run(pace, N_COMPARED, lambda number, on: 50.0 if on and number % 5 < 2 else 0.1 if on else 0.2)
    assert verdict(pace) is Verdict.PAYS and pace.on_s == pytest.approx(0.1)


def test_a_decision_of_the_caller_is_kept() -> None:
    for decided in (Verdict.ALWAYS, Verdict.NEVER):
        pace = Fixed(decided)
        pace.took(1.0)
        assert pace.is_on == (decided is Verdict.ALWAYS) and pace.verdict is decided
