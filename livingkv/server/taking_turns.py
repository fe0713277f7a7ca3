"""Who has the model next: rounds in which each job that runs gets its share of time.

Knows jobs and clocks; knows nothing of what a step does, but whether it ended at a pass that may be shared. In a round,
all replies that are being generated get a token, in shared passes; then what reads prompts, or does anything else,
gets as much time as that took; what nobody waits for gets an eighth of what both take.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from livingkv.server.api_errors import without_values
from livingkv.server.counters import Counters, StepKind
from livingkv.server.joining import Joining
from livingkv.server.model_job import Job

LOG = logging.getLogger("livingkv.server")

_BEHIND = 1 / 8
"""Share of the time that background work has while requests need the model."""
_NOTHING_S, _QUIET_ROUNDS = 0.001, 50
"""Requests whose steps took no longer than that, in so many rounds one after the other, wait for something, which may
be background work. A request that comes has some such steps before it needs the model."""


class TakingTurns:
    """The jobs that run. is_on: False, and no job gets a step any more. Used on the inference thread."""

    def __init__(
        self,
        joining: Joining,
        counters: Counters,
        is_on: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.running: list[Job] = []
        self.background: list[Job] = []
        self._joining = joining
        self._counters = counters
        self._is_on = is_on
        self._clock = clock
        self._credit_s = 0.0  # of all background jobs
        self._n_quiet = 0  # rounds in which requests did nothing

    def round(self) -> None:
        """Give out steps."""
        generating = [job for job in self.running if job.waits]
        others = [job for job in self.running if not job.waits]
        took_s = self._generate(generating)
        took_s += self._read(others, took_s if generating else None)
        self._work_behind(took_s)

    def _generate(self, jobs: Sequence[Job]) -> float:
        """A token for each; seconds."""
        started = self._clock()
        for job in jobs:
            if job.is_cancelled:
                self._step(job, self.running)  # it leaves, and takes no row
        if not self._joining.n_waiting:
            return 0.0
        self._joining.run()
        for job in jobs:
            if job in self.running:
                self._step(job, self.running)
        took_s = self._clock() - started
        self._counters.stepped("decode", took_s)
        return took_s

    def _read(self, jobs: Sequence[Job], generated_s: float | None) -> float:
        """A step for each; where others generate, in turn and as long as they took. Seconds."""
        spent_s = 0.0
        if generated_s is None:
            for job in jobs:
                job.credit_s = 0.0
                spent_s += self._step(job, self.running, "read")
            return spent_s
        for job in jobs:
            job.credit_s = min(0.0, job.credit_s + generated_s / len(jobs))
        for job in sorted(jobs, key=lambda job: -job.credit_s):
            if job.credit_s < 0.0 or spent_s > generated_s:
                break
            took_s = self._step(job, self.running, "read")
            job.credit_s -= took_s
            spent_s += took_s
        return spent_s

    def _work_behind(self, took_s: float) -> None:
        """A step for background jobs, once they have a share again; for the next of them where requests run."""
        self._credit_s = min(0.0, self._credit_s + took_s * _BEHIND / (1 - _BEHIND))
        self._n_quiet = self._n_quiet + 1 if self.running and took_s <= _NOTHING_S else 0
        is_needed = bool(self.running) and self._n_quiet < _QUIET_ROUNDS
        if not self.background or (is_needed and self._credit_s < 0.0):
            return
        for job in self.background[: 1 if is_needed else None]:
            self.background.remove(job)
            self.background.append(job)
            self._credit_s = -self._step(job, self.background, "background")

    def _step(self, job: Job, jobs: list[Job], kind: StepKind | None = None) -> float:
        """One step of a job, which leaves `jobs` when nothing more comes of it; seconds."""
        started = self._clock()
        if not self._is_on():
            return 0.0
        n_waiting = self._joining.n_waiting
        if not self._went_on(job):
            jobs.remove(job)
        job.waits = self._joining.n_waiting > n_waiting
        took_s = self._clock() - started
        if kind is not None:
            self._counters.stepped(kind, took_s)
        return took_s

    def _went_on(self, job: Job) -> bool:
        """One step of a job; False when nothing more comes of it."""
        try:
            if job.is_cancelled:
                self._counters.cancelled.inc()
                job.close()
                return False
            goes_on = job.step()
            if len(self.running) + len(self.background) > 1:
                self._joining.settle()
            return goes_on
        except Exception as error:  # the edge of a request: told to it, and counted
            job.fail(error)
        return False

    def drop(self, more: Sequence[Job], reason: Callable[[], Exception]) -> None:
        """Close every job, whatever closing another raises, and tell whoever waits for it or for one of `more`."""
        for job in [*self.running, *self.background, *more]:
            try:
                job.close()
            except Exception as error:  # the edge of a request: the others are closed all the same
                LOG.error("a job could not be closed", exc_info=without_values(error))
            job.fail(reason())
