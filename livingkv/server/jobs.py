"""The jobs of all tenants: long work that nobody waits for. One of a tenant's runs at a time, the others wait in order.

Knows what state a job is in and whose turn it is; knows nothing of what a job does. May be used from any thread.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Literal

from livingkv.server.api_errors import ApiError, queue_full

State = Literal["queued", "running", "done", "failed", "cancelled"]
Kind = Literal["ingest", "prune", "reembed", "defrag"]
MOST_WAITING = 1000
"""Jobs of one tenant that wait."""
MOST_ENDED = 1000
"""Jobs of one tenant that have ended and can still be asked about."""


def new_job_id() -> str:
    """An id that nobody can guess."""
    return f"job-{token_hex(12)}"


@dataclass(slots=True, eq=False)
class Job:
    """One job. user: whose it is, "" for nobody; session: the stored name that it writes to, None for none.

    done, total: how far it is, in `unit`; total is None while that is not known.
    """

    job_id: str
    kind: Kind
    user: str
    session: str | None = None
    source: str | None = None
    unit: str = "bytes"
    total: int | None = None
    created_s: float = field(default_factory=time.time)
    done: int = 0
    state: State = "queued"
    ended_s: float | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    is_cancelled: bool = False

    @property
    def has_ended(self) -> bool:
        """Nothing more comes of it."""
        return self.state in ("done", "failed", "cancelled")


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What a job does. steps: until it is done, paused often; closed early it leaves what is durable. ended: called
    once nothing more comes of it, whatever the reason; not when the service stops before."""

    job: Job
    steps: Callable[[Job], Generator[None, None, None]]
    ended: Callable[[Job], None]


class NotYet(Exception):
    """Raised by a job that cannot begin and keeps its place. is_soon: it is tried again behind other tenants' jobs,
    else with the next job of its tenant."""

    def __init__(self, *, is_soon: bool) -> None:
        super().__init__("the job waits")
        self.is_soon = is_soon


@dataclass(slots=True)
class _Tenant:
    jobs: OrderedDict[str, Job] = field(default_factory=OrderedDict)
    waiting: deque[Work] = field(default_factory=deque)
    is_running: bool = False


Submit = Callable[[Callable[[], Iterator[None]]], None]


class Jobs:
    """All of them. submit: has the inference thread make steps of what it is given, in the background; raises ApiError
    where it takes nothing. told: what a client is told of an error, which it may note."""

    def __init__(self, submit: Submit, told: Callable[[Exception], ApiError]) -> None:
        self._submit = submit
        self._told = told
        self._tenants: dict[str, _Tenant] = {}
        self._lock = threading.Lock()

    def add(self, tenant: str, work: Work) -> None:
        """Have it done when its turn comes. Raises ApiError where too many wait already, or none is taken."""
        with self._lock:
            own = self._tenants.setdefault(tenant, _Tenant())
            if len(own.waiting) >= MOST_WAITING:
                raise queue_full()
            own.waiting.append(work)
            own.jobs[work.job.job_id] = work.job
            try:
                self._go_on(tenant, own)
            except ApiError:
                own.waiting.remove(work)
                del own.jobs[work.job.job_id]
                raise

    def of(self, tenant: str) -> list[Job]:
        """A tenant's jobs, newest first: those that have not ended, and the last ones that have."""
        with self._lock:
            own = self._tenants.get(tenant)
            return [] if own is None else list(reversed(own.jobs.values()))

    def find(self, tenant: str, job_id: str) -> Job | None:
        """A tenant's job, None if there is none of this id."""
        with self._lock:
            own = self._tenants.get(tenant)
            return None if own is None else own.jobs.get(job_id)

    def cancel(self, tenant: str, job: Job) -> None:
        """Give it up: at once where it waits, before its next step where it runs. What is durable stands. Blocks while
        what it held is cleared away."""
        with self._lock:
            job.is_cancelled = True
            own = self._tenants[tenant]
            waiting = next((work for work in own.waiting if work.job is job), None)
            if waiting is not None:
                own.waiting.remove(waiting)
        if waiting is not None:
            self._end(own, waiting, "cancelled")

    def writes_to(self, tenant: str, is_meant: Callable[[str], bool]) -> bool:
        """True where an ingest that has not ended writes to a session whose stored name is meant."""
        return any(
            job.kind == "ingest" and not job.has_ended and job.session is not None and is_meant(job.session)
            for job in self.of(tenant)
        )

    def forget_names(self, tenant: str, is_there: Callable[[str | None, str | None], bool]) -> None:
        """Let ended jobs name no session and no source that are there no more; the counts of what they did stay."""
        for job in self.of(tenant):
            if job.has_ended and not is_there(job.session, job.source):
                named = {"session", "source"}
                result = {name: value for name, value in (job.result or {}).items() if name not in named}
                job.session, job.source, job.result = None, None, result or None

    def _go_on(self, tenant: str, own: _Tenant) -> None:
        """Start the next one, if none runs."""
        if own.waiting and not own.is_running:
            work = own.waiting[0]
            self._submit(lambda: self._steps(tenant, own, work))
            own.waiting.popleft()
            own.is_running = True

    def _steps(self, tenant: str, own: _Tenant, work: Work) -> Iterator[None]:
        """The steps of one job, and its end; where the service stops meanwhile it is closed, and does not end."""
        job = work.job
        state: State = "cancelled"
        try:
            with closing(work.steps(job)) as steps:
                job.state = "running"
                while not job.is_cancelled:
                    if next(steps, job) is job:
                        state = "done"
                        break
                    yield
        except NotYet as error:
            if self._put_back(tenant, own, work, is_soon=error.is_soon):
                return
        except Exception as error:  # the edge of a job: told to whoever asks for it, and recorded
            state, job.error = "failed", self._error(error)
        self._end(own, work, state)
        with self._lock:
            own.is_running = False
            self._go_on(tenant, own)

    def _put_back(self, tenant: str, own: _Tenant, work: Work, *, is_soon: bool) -> bool:
        """Have a job wait in its place again; False where it was cancelled meanwhile."""
        with self._lock:
            if work.job.is_cancelled:
                return False
            work.job.state, own.is_running = "queued", False
            own.waiting.appendleft(work)
            if is_soon:
                self._go_on(tenant, own)
        return True

    def _end(self, own: _Tenant, work: Work, state: State) -> None:
        """Blocks while what the job held is cleared away."""
        job = work.job
        try:
            work.ended(job)
        except Exception as error:  # the same edge: the job has ended all the same
            job.error = job.error or self._error(error)
        with self._lock:
            job.ended_s, job.state = time.time(), state
            ended = [each.job_id for each in own.jobs.values() if each.has_ended]
            for job_id in ended[: max(0, len(ended) - MOST_ENDED)]:
                del own.jobs[job_id]

    def _error(self, error: Exception) -> dict[str, Any]:
        told: dict[str, Any] = self._told(error).envelope()["error"]
        return told
