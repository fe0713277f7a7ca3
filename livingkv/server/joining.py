"""Decode steps of calls that run in steps, done together: each pauses with its step, and goes on with what it gave.

Knows calls that pause and a runner's `logits_of`; knows nothing of jobs, of time or of what is generated. On the
inference thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from livingkv.batched_decode import DecodeStep, Outcome
from livingkv.runner import Runner
from livingkv.server.stepwise import pause, pause_between_passes, runs_in_steps


@dataclass(slots=True, eq=False)
class _Asked:
    """A step that waits. outcome: None until it was done."""

    runner: Runner
    step: DecodeStep
    outcome: Outcome | None = None


class Joining:
    """The steps that wait now. max_batch: so many at most in one forward pass. told: gets how many each pass held."""

    def __init__(self, max_batch: int, told: Callable[[int], None]) -> None:
        self._max_batch = max_batch
        self._told = told
        self._waiting: list[_Asked] = []
        self._device = torch.device("cpu")

    @property
    def n_waiting(self) -> int:
        """Steps that `run` will do."""
        return len(self._waiting)

    def take_part(self, runner: Runner) -> None:
        """Have a runner pause before each pass of a call that runs in steps, with a decode step for `run`. All runners
        that take part are of one network."""
        self._device = runner.model.device
        pause_between_passes(runner)
        runner.join = lambda step: self._join(runner, step)

    def settle(self) -> None:
        """Wait until a GPU has done what was launched: before that, no clock says what a step took."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def run(self) -> None:
        """Do all that wait, in the order in which they came. Their calls go on, with the outcome, when they have their
        next step."""
        waiting, self._waiting = self._waiting, []
        for lo in range(0, len(waiting), self._max_batch):
            some = waiting[lo : lo + self._max_batch]
            try:
                outcomes = some[0].runner.logits_of([each.step for each in some])
            except Exception as error:  # the edge of the requests in it, each of which is told
                outcomes = [error] * len(some)
            for each, outcome in zip(some, outcomes, strict=True):
                each.outcome = outcome
            self._told(len(some))

    def _join(self, runner: Runner, step: DecodeStep) -> Tensor | int | None:
        """The logits or the token, once there; None outside of steps or where none came. Raises the state's error."""
        if not runs_in_steps():
            return None
        asked, counted = _Asked(runner, step), (runner.n_prefilled, runner.n_passes)
        self._waiting.append(asked)
        try:
            pause()
        finally:
            runner.n_prefilled, runner.n_passes = counted
            if asked in self._waiting:  # given up
                self._waiting.remove(asked)
        if isinstance(asked.outcome, Exception):
            raise asked.outcome
        return asked.outcome
