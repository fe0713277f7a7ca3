"""Calls of the library in steps: pauses, giving up, inference mode, and counts that are the call's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from livingkv.server.gate import Gate
from livingkv.server.stepwise import in_steps, pause


def drained(steps: Iterator[None]) -> int:
    return sum(1 for _ in steps)


def test_a_call_pauses_and_returns() -> None:
    result: list[int] = []

    def outer() -> Iterator[None]:
        def call() -> int:
            for _ in range(3):
                pause()
            return 7

        result.append((yield from in_steps(call)))

    assert drained(outer()) == 3
    assert result == [7]


def test_outside_of_steps_nothing_pauses() -> None:
    pause()


def test_what_a_call_raises_comes_out() -> None:
    def call() -> None:
        pause()
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        drained(in_steps(call))


def test_a_call_that_is_given_up_is_unwound() -> None:
    log: list[str] = []

    def call() -> None:
        try:
            pause()
            log.append("went on")
        except Exception:
            log.append("swallowed")
        finally:
            log.append("unwound")

    steps = in_steps(call)
    next(steps)
    steps.close()
    assert log == ["unwound"]


def test_inference_mode_is_each_calls_own() -> None:
    """Entered by two calls, left in the order that is not a stack's."""
    seen: list[tuple[str, bool]] = []

    def call(name: str, n_pauses: int) -> None:
        with torch.inference_mode():
            for _ in range(n_pauses):
                pause()
                seen.append((name, torch.is_inference_mode_enabled()))

    first, second = in_steps(lambda: call("a", 1)), in_steps(lambda: call("b", 2))
    next(first)
    assert not torch.is_inference_mode_enabled()
    next(second)
    assert drained(first) == 0
    assert not torch.is_inference_mode_enabled()
    assert drained(second) == 1
    assert seen == [("a", True), ("b", True), ("b", True)]
    assert not torch.is_inference_mode_enabled()


def test_one_alone_waits_for_those_inside_and_keeps_others_out() -> None:
    gate = Gate()
    inside, alone, later = ExitStack(), ExitStack(), ExitStack()
    assert drained(gate.enter(inside)) == 0
    wanting = gate.enter(alone, alone=True)
    next(wanting)
    coming = gate.enter(later)
    next(coming)  # the one that wants to be alone goes first
    inside.close()
    assert drained(wanting) == 0
    next(coming)
    assert not gate.is_free
    alone.close()
    assert drained(coming) == 0
    later.close()
    assert gate.is_free


def test_who_gives_up_waiting_keeps_nobody_out() -> None:
    gate = Gate()
    inside, alone = ExitStack(), ExitStack()
    assert drained(gate.enter(inside)) == 0
    wanting = gate.enter(alone, alone=True)
    next(wanting)
    wanting.close()
    assert drained(gate.enter(inside)) == 0
    inside.close()
    assert gate.is_free


def test_one_of_many_steps_out_for_one_alone() -> None:
    gate = Gate()
    inside, alone = ExitStack(), ExitStack()
    assert drained(gate.enter(inside)) == 0
    assert drained(gate.step_out()) == 0
    wanting = gate.enter(alone, alone=True)
    next(wanting)
    out = gate.step_out()
    next(out)
    assert drained(wanting) == 0
    next(out)
    alone.close()
    assert drained(out) == 0
    inside.close()
    assert gate.is_free
