"""Requests that wait for the model, taken up by turns of tenants and of users within a tenant.

Knows whose each is; knows nothing of what they do. May be used from any thread.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from itertools import count

from livingkv.server.model_job import Job, Whose

_REMEMBERED = 1024
"""Tenants and users of whom is known when they were taken up; of others nothing is owed to anybody."""


class FairQueue:
    """Next is the tenant who has fewest running, then the user, then whoever was taken up longest ago; of one user, the
    first that came. So nobody waits for a crowd of another's. n_most: each tenant's may be so many."""

    def __init__(self, n_most: int) -> None:
        self._n_most = n_most
        self._jobs: deque[Job] = deque()
        self._taken: dict[str | Whose, int] = {}
        self._numbers = count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: Job) -> bool:
        """Queue a job; False where too many of its tenant wait."""
        with self._lock:
            tenant = job.whose.tenant
            if sum(each.whose.tenant == tenant for each in self._jobs) >= self._n_most:
                return False
            self._jobs.append(job)
            return True

    def take(self, running: Sequence[Job], n_places: int) -> Job | None:
        """The next one, None where none waits or none may be taken up while these are running. The last of the places
        is for a user who has none, once others were there as well: a crowd leaves a way in."""
        with self._lock:
            n_running = Counter[str | Whose](job.whose.tenant for job in running)
            n_running.update(job.whose for job in running)
            free = n_places - len(running)
            is_kept = free == 1 and n_places > 1 and self._n_users > 1
            fit = [job for job in self._jobs if not (is_kept and n_running[job.whose])]
            if free < 1 or not fit:
                return None
            taken = min(fit, key=lambda job: self._order(job.whose, n_running))
            self._jobs.remove(taken)
            self._note(taken.whose)
            return taken

    def clear(self) -> list[Job]:
        """Take all."""
        with self._lock:
            left, self._jobs = list(self._jobs), deque()
            return left

    @property
    def _n_users(self) -> int:
        return sum(isinstance(each, Whose) for each in self._taken)

    def _order(self, whose: Whose, n_running: Counter[str | Whose]) -> tuple[int, int, int, int]:
        tenant = whose.tenant
        return n_running[tenant], self._taken.get(tenant, -1), n_running[whose], self._taken.get(whose, -1)

    def _note(self, whose: Whose) -> None:
        for name in (whose.tenant, whose):
            self._taken.pop(name, None)  # the last one taken up comes last
            self._taken[name] = next(self._numbers)
        while len(self._taken) > _REMEMBERED:
            del self._taken[next(iter(self._taken))]
