"""The one thread that runs the model, and the bounded queue before it.

Knows jobs as iterators of steps: a step is a block of a prompt or a token of a reply. Jobs side by side take turns step
by step, so a short one does not wait for a long one; a job that is given up is closed before its next step. Knows
nothing of what a step does.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum

from livingkv.server.api_errors import ApiError, not_ready, queue_full, without_values
from livingkv.server.counters import Counters

LOG = logging.getLogger("livingkv.server")
Steps = Callable[[], Iterator[None]]


class Phase(Enum):
    """What the thread is doing in all."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"


_N_BACKGROUND = 2
"""Background jobs whose steps take turns."""
_SHARE = 8
"""While requests run, background work gets one step after so many rounds of theirs."""
_N_BACKGROUND_WAITING = 1000


class Job:
    """One request's work. `cancel` may be called from any thread, also when it is done."""

    def __init__(self, make: Steps, fail: Callable[[Exception], None]) -> None:
        self.fail = fail
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
        self._n_queued = 0  # jobs in `_waiting`, in which None wakes the thread; under `_gate`
        self._idle_from = time.monotonic()
        self._waiting: queue.Queue[Job | None] = queue.Queue()
        self._n_waiting = n_waiting
        self._n_side_by_side = n_side_by_side
        self._idle_s = idle_s
        self._running: list[Job] = []
        self._background_waiting: queue.Queue[Job] = queue.Queue()
        self._background: list[Job] = []
        self._rounds = 0
        counters.waiting.set_function(lambda: self._n_queued)
        counters.running.set_function(lambda: len(self._running))
        counters.background.set_function(lambda: len(self._background) + self._background_waiting.qsize())
        self._gate = threading.Lock()  # nothing is queued once the phase is another than READY
        self._thread = threading.Thread(target=self._run, name="livingkv-inference", daemon=True)

    def start(self) -> None:
        """Begin; `phase` tells how far it is."""
        self._thread.start()

    def submit(self, make: Steps, fail: Callable[[Exception], None], *, background: bool = False) -> Job:
        """Queue a job. Raises ApiError where too many wait, or while none are taken."""
        job = Job(make, fail)
        with self._gate:
            if self.phase is not Phase.READY:
                raise self.refusal()
            n_waiting = self._background_waiting.qsize() if background else self._n_queued
            if n_waiting >= (_N_BACKGROUND_WAITING if background else self._n_waiting):
                raise queue_full()
            if background:
                self._background_waiting.put(job)
                self._waiting.put(None)  # wakes it
            else:
                self._waiting.put(job)
                self._n_queued += 1
        return job

    def wake(self) -> None:
        """Have `between` called soon, also where there is no job."""
        self._waiting.put(None)

    def stop(self, timeout_s: float) -> bool:
        """Close all jobs, finish, and wait for it. False where a step takes longer than that."""
        with self._gate:
            if self.phase is not Phase.FAILED:
                self.phase = Phase.STOPPING
        self._waiting.put(None)  # wakes it
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
        LOG.error("the inference thread failed", exc_info=without_values(error))
        with self._gate:
            self.error, self.phase = self.error or error, Phase.FAILED

    def _drop_jobs(self) -> None:
        """Close every job, whatever closing another raises, and tell whoever waits for it."""
        left = [*self._running, *self._background]
        for waiting in (self._waiting, self._background_waiting):
            while not waiting.empty():
                job = waiting.get_nowait()
                left += [job] if job is not None else []
        for job in left:
            try:
                job.close()
            except Exception as error:  # the edge of a request: the others are closed all the same
                LOG.error("a job could not be closed", exc_info=without_values(error))
            job.fail(self.refusal())

    def _round(self) -> None:
        """Take up jobs, and let each do a step."""
        self._take()
        self._rounds += 1
        self._step_all(self._running)
        if self._background and (not self._running or self._rounds % _SHARE == 0):
            self._step_all(self._background)
        if self._running or self._background:
            self._idle_from = time.monotonic()
        self._has_more_between = self._between()

    def _step_all(self, jobs: list[Job]) -> None:
        for job in list(jobs):
            if self.phase is not Phase.READY:
                return
            if not self._went_on(job):
                jobs.remove(job)

    def _take(self) -> None:
        while self._background_waiting.qsize() and len(self._background) < _N_BACKGROUND:
            self._background.append(self._background_waiting.get_nowait())
        try:
            while len(self._running) < self._n_side_by_side:
                job = self._waiting.get_nowait() if self._is_busy else self._waiting.get(timeout=self._idle_left_s)
                if job is None:
                    return
                with self._gate:
                    self._n_queued -= 1
                self._running.append(job)
        except queue.Empty:
            if not (self._is_busy or self._background_waiting.qsize()):
                self._idle()
                self._idle_from = time.monotonic()

    @property
    def _is_busy(self) -> bool:
        return bool(self._running or self._background or self._has_more_between)

    @property
    def _idle_left_s(self) -> float:
        return max(0.0, self._idle_from + self._idle_s - time.monotonic())

    def _went_on(self, job: Job) -> bool:
        """One step of a job; False when nothing more comes of it."""
        try:
            if job.is_cancelled:
                self._counters.cancelled.inc()
                job.close()
                return False
            return job.step()
        except Exception as error:  # the edge of a request: told to it, and counted
            job.fail(error)
        return False
