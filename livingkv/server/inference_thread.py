"""The one thread that runs the model, and the bounded queues before it.

Knows jobs as iterators of steps: a step is a block of a prompt or a token of a reply. Jobs side by side take turns
(taking_turns.py), so a short one does not wait for a long one; a job that is given up is closed before its next step.
Knows nothing of what a step does.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from enum import Enum

from livingkv.errors import LivingKVError
from livingkv.server.api_errors import ApiError, not_ready, queue_full, without_values
from livingkv.server.counters import Counters, WaitKind
from livingkv.server.fair_queue import FairQueue
from livingkv.server.joining import Joining
from livingkv.server.model_job import NOBODY, Job, Steps, Whose
from livingkv.server.taking_turns import TakingTurns

LOG = logging.getLogger("livingkv.server")


class Phase(Enum):
    """What the thread is doing in all."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"


_N_BACKGROUND = 2
"""Background jobs whose steps take turns."""
_N_BACKGROUND_WAITING = 1000


class InferenceThread:
    """Runs `prepare`, then `ready`, once jobs are taken, then jobs until `stop`, then `finish`, all on one thread.
    `idle` is called after `idle_s` without a job, `between` after every round of steps, and again at once where it
    returns True. Where one of them raises, `phase` is FAILED and `error` says why; jobs are closed and `finish` is
    called all the same, and no job is taken any more."""

    def __init__(
        self,
        prepare: Callable[[], None],
        idle: Callable[[], None],
        finish: Callable[[], None],
        counters: Counters,
        joining: Joining,
        *,
        between: Callable[[], bool] = lambda: False,
        ready: Callable[[], None] = lambda: None,
        n_waiting: int,
        n_side_by_side: int,
        idle_s: float,
    ) -> None:
        self.phase = Phase.STARTING
        self.error: Exception | None = None
        self._prepare, self._idle, self._finish, self._ready = prepare, idle, finish, ready
        self._counters = counters
        self._between = between
        self._has_more_between = False
        self._idle_from = time.monotonic()
        self._waiting = FairQueue(n_waiting)
        self._woken = threading.Event()
        self._n_side_by_side = n_side_by_side
        self._idle_s = idle_s
        self._background_waiting: queue.Queue[Job] = queue.Queue()
        self._turns = TakingTurns(joining, counters, lambda: self.phase is Phase.READY)
        counters.waiting.set_function(lambda: len(self._waiting))
        counters.running.set_function(lambda: len(self._turns.running))
        counters.background.set_function(lambda: len(self._turns.background) + self._background_waiting.qsize())
        self._gate = threading.Lock()  # nothing is queued once the phase is another than READY
        self._thread = threading.Thread(target=self._run, name="livingkv-inference", daemon=True)

    def start(self) -> None:
        """Begin; `phase` tells how far it is."""
        self._thread.start()

    def submit(
        self, make: Steps, fail: Callable[[Exception], None], whose: Whose = NOBODY, *, background: bool = False
    ) -> Job:
        """Queue a job. Raises ApiError where too many of its tenant wait, or while none are taken."""
        job = Job(make, fail, whose)
        with self._gate:
            if self.phase is not Phase.READY:
                raise self.refusal()
            if not background:
                is_queued = self._waiting.put(job)
            elif is_queued := self._background_waiting.qsize() < _N_BACKGROUND_WAITING:
                self._background_waiting.put(job)
        if not is_queued:
            raise queue_full()
        self._woken.set()
        return job

    def wake(self) -> None:
        """Have `between` called soon, also where there is no job."""
        self._woken.set()

    def stop(self, timeout_s: float) -> bool:
        """Close all jobs, finish, and wait for it. False where a step takes longer than that."""
        with self._gate:
            if self.phase is not Phase.FAILED:
                self.phase = Phase.STOPPING
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def refusal(self) -> ApiError:
        """Why no job is taken now, by the phase."""
        told = {
            Phase.FAILED: "the service failed and ends: it has to be started again",
            Phase.STOPPING: "the service is stopping",
        }
        return not_ready(told.get(self.phase, "the model is being loaded: try again"))

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # the edge of the thread: whoever asks for its phase is told
            self._failed(error)
        try:
            self._drop_jobs()
        finally:
            try:
                self._finish()
            except Exception as error:  # the edge of the thread, again
                self._failed(error)

    def _work(self) -> None:
        self._prepare()
        with self._gate:
            if self.phase is Phase.STARTING:
                self.phase = Phase.READY
        if self.phase is Phase.READY:
            self._ready()
        self._idle_from = time.monotonic()
        while self.phase is Phase.READY:
            self._round()

    def _failed(self, error: Exception) -> None:
        """Note the first error, which the others may come from."""
        is_refusal = self.phase is Phase.STARTING and isinstance(error, LivingKVError)  # told as the service ends
        LOG.error("the inference thread failed", exc_info=None if is_refusal else without_values(error))
        with self._gate:
            self.error, self.phase = self.error or error, Phase.FAILED

    def _drop_jobs(self) -> None:
        """Close every job, and tell whoever waits for it."""
        left = self._waiting.clear()
        while not self._background_waiting.empty():
            left.append(self._background_waiting.get_nowait())
        self._turns.drop(left, self.refusal)

    def _round(self) -> None:
        """Take up jobs, and let them have steps."""
        self._woken.clear()
        self._take()
        if not self._is_busy and not self._woken.wait(self._idle_left_s):
            self._idle()
            self._idle_from = time.monotonic()
        self._turns.round()
        if self._turns.running or self._turns.background:
            self._idle_from = time.monotonic()
        self._has_more_between = self._between()

    def _take(self) -> None:
        turns = self._turns
        while self._background_waiting.qsize() and len(turns.background) < _N_BACKGROUND:
            turns.background.append(self._taken(self._background_waiting.get_nowait(), "background"))
        while (job := self._waiting.take(turns.running, self._n_side_by_side)) is not None:
            turns.running.append(self._taken(job, "request"))

    def _taken(self, job: Job, kind: WaitKind) -> Job:
        self._counters.waited_for(kind, time.monotonic() - job.submitted_s)
        return job

    @property
    def _is_busy(self) -> bool:
        return bool(self._turns.running or self._turns.background or self._has_more_between)

    @property
    def _idle_left_s(self) -> float:
        return max(0.0, self._idle_from + self._idle_s - time.monotonic())
