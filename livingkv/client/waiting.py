"""Waiting for a job: how often to ask, when to stop, what to tell.

Knows jobs and seconds; sleeps nowhere itself, so that the sync and the async client share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from livingkv.client.answers import Job
from livingkv.client.errors import JobFailed, JobUnfinished

_FIRST_S, _MOST_S = 0.05, 1.0


@dataclass(slots=True)
class Waiting:
    """One job that is waited for. timeout_s: None for as long as it takes. progress: told each state that is new."""

    timeout_s: float | None
    progress: Callable[[Job], None] | None
    _began_s: float = field(default_factory=time.monotonic)
    _pause_s: float = _FIRST_S
    _last: Job | None = None

    def pause_s(self, job: Job) -> float | None:
        """How long to wait before asking again; None where the job is done. Raises JobFailed or JobUnfinished."""
        if self.progress is not None and job != self._last:
            self.progress(job)
        self._last = job
        if job.state == "done":
            return None
        if job.is_over:
            raise JobFailed(job)
        left_s = None if self.timeout_s is None else self._began_s + self.timeout_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise JobUnfinished(job, self.timeout_s or 0.0)
        pause_s, self._pause_s = self._pause_s, min(_MOST_S, self._pause_s * 1.5)
        return pause_s if left_s is None else min(pause_s, left_s)
