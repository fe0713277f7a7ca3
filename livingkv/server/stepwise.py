"""A call of the library as steps: it pauses before every forward pass, so that requests can take turns and be given up.

Knows greenlets and torch's inference mode, which belongs to the thread and not to a greenlet; knows nothing of what is
called. Everything stays on the one thread, which is what the library asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import greenlet
import torch

from livingkv.runner import Runner

T = TypeVar("T")
_WAIT_S = 0.001
"""So long nothing else is done on this thread while another one works, in each round."""


class _Call(greenlet.greenlet):
    """A call that may pause."""


def in_steps(call: Callable[[], T]) -> Generator[None, None, T]:
    """Make the call, and yield wherever it pauses; what it returns. Raises what it raises.

    Closed before the end, the call is unwound from where it paused, as by an exception that is no `Exception`.
    """
    work = _Call(call)
    try:
        result: Any = work.switch()
        while not work.dead:
            yield
            result = work.switch()
        made: T = result
        return made
    finally:
        while not work.dead:
            work.throw(greenlet.GreenletExit)


def runs_in_steps() -> bool:
    """True inside of a call that `in_steps` makes."""
    return isinstance(greenlet.getcurrent(), _Call)


def pause() -> None:
    """Let others have a step, where the caller runs in steps; else do nothing."""
    work = greenlet.getcurrent()
    if isinstance(work, _Call) and work.parent is not None:
        with torch.inference_mode(False):
            work.parent.switch()


def aside(call: Callable[[], T]) -> T:
    """Make a call on another thread, which needs neither the model nor this one, while others have steps; what it
    returns. It has ended when this returns or raises, also where the caller is given up."""
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(call)
        while not wait((made,), timeout=_WAIT_S).done:
            pause()
        return made.result()


def pause_between_passes(runner: Runner) -> None:
    """Have a runner pause before each pass of a call that runs in steps. What the runner counts goes on, for that
    call, where it stood: passes of others in between are not its own."""

    def between() -> None:
        counted = runner.n_prefilled, runner.n_passes
        pause()
        runner.n_prefilled, runner.n_passes = counted

    runner.between = between
