"""One request's work on the inference thread, as steps.

Knows an iterator of steps; knows nothing of what a step does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

Steps = Callable[[], Iterator[None]]


class Whose(NamedTuple):
    """For whom a request is: "" for nobody in particular."""

    tenant: str
    user: str = ""


NOBODY = Whose("")


class Job:
    """`cancel` may be called from any thread, also when it is done; all else is the inference thread's.

    waits: its last step ended at a pass that it may share with others. credit_s: model time that it may take, negative
    where it took more than its share.
    """

    def __init__(self, make: Steps, fail: Callable[[Exception], None], whose: Whose) -> None:
        self.fail = fail
        self.whose = whose
        self.submitted_s = time.monotonic()
        self.waits = False
        self.credit_s = 0.0
        self._make = make
        self._steps: Iterator[None] | None = None
        self._cancelled = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        """True once it was given up."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Give it up: it is closed before its next step."""
        self._cancelled.set()

    def step(self) -> bool:
        """One step; False when it was the last. Raises what the step raises."""
        if self._steps is None:
            self._steps = self._make()
        return next(self._steps, self) is not self

    def close(self) -> None:
        """Undo what a job that is not done holds."""
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()
