"""What jobs do: a text read into a session piece by piece, and the verbs that change a whole store.

Knows tenants, limits and the files of accepted texts; knows no route. Runs in the background of the inference thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from livingkv.errors import RecordDamaged, StoreError, StoreLocked
from livingkv.results import Ingested
from livingkv.server.api_errors import ApiError
from livingkv.server.job_files import WORK, Accepted, JobFiles, digest_of
from livingkv.server.job_results import Result, ingested_json
from livingkv.server.jobs import Job, Jobs, Kind, NotYet, Work, new_job_id
from livingkv.server.keys import TENANT
from livingkv.server.limits import TurnLimits
from livingkv.server.owners import user_of
from livingkv.server.stepwise import in_steps, pause
from livingkv.server.tenants import Tenant
from livingkv.server.transfers import clear

LOG = logging.getLogger("livingkv.server")
Verb = Callable[[Tenant, Callable[[int, int], None]], Result]
"""A call that changes a store, with what it tells its progress to."""
_LOCKED_S, _STEP_S = 1.0, 0.005
"""How long an ingest waits before it looks again whether its store can be opened, and how much of that in one step."""


class Enter(Protocol):
    """How one comes into a tenant's memory, and out when `undo` is unwound."""

    def __call__(self, tenant: str, undo: ExitStack, *, alone: bool = False) -> Generator[None, None, Tenant]:
        """Waits by yielding."""


class _LetIn(Exception):
    """The ingest stops at a durable piece, so that somebody can be alone, and goes on behind them."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text to ingest; session: its stored name."""

    session: str
    source: str
    text: bytes
    kv: bool = True


class JobWork:
    """Makes jobs and has them done. folder: that of the tenants' stores. enter: as Service.enter."""

    def __init__(self, folder: Path, jobs: Jobs, enter: Enter, limits: Callable[[], TurnLimits]) -> None:
        self.jobs = jobs
        self._folder = folder
        self._enter = enter
        self._limits = limits

    def check(self, tenant: Tenant, asked: Text) -> tuple[bytes, int | None]:
        """What of an ingest is to be kept until it is done: its text, or that sealed, and for which session. Runs on
        the inference thread. Raises InputError or ApiError where the text may not be ingested; nothing is changed."""
        limits, home = self._limits(), tenant.home
        waiting = sum(job.total or 0 for job in self.jobs.of(tenant.name) if job.kind == "ingest" and not job.has_ended)
        limits.check_bytes(tenant, waiting + len(asked.text))
        row = home.known_session(asked.session, kv=asked.kv)
        if row is None:
            limits.check_sessions(tenant)
        elif row.encrypted:
            both = asked.source.encode() + b"\0" + asked.text
            return home.store().seal_aside(row.session_id, both), row.session_id
        return asked.text, None

    def accept(self, tenant: str, asked: Text, kept: bytes, sealed_for: int | None) -> Job:
        """An ingest's job; its text is durable on return. kept, sealed_for: from `check`. Blocks. Raises StoreError, or
        ApiError where too many wait; nothing is kept then."""
        user, now_ms = user_of(asked.session), int(time.time() * 1000)
        source = asked.source if sealed_for is None else ""
        accepted = Accepted(
            job_id=new_job_id(),
            user=user,
            session=asked.session,
            source=source,
            kv=asked.kv,
            n_bytes=len(asked.text),
            digest=digest_of(kept),
            created_ms=now_ms,
            sealed_for=sealed_for,
        )
        files = self._files(tenant)
        files.keep(accepted, kept)
        with ExitStack() as undo:
            undo.callback(files.remove, accepted.job_id)
            job = self._add(tenant, files, accepted, source=asked.source)
            undo.pop_all()
        return job

    def store_job(self, tenant: str, kind: Kind, user: str, session: str | None, unit: str, verb: Verb) -> Job:
        """A job that is alone with the tenant's memory while it runs. Raises ApiError where too many wait."""
        job = Job(new_job_id(), kind, user, session, unit=unit)

        def steps(job: Job) -> Generator[None, None, None]:
            def progress(done: int, total: int) -> None:
                job.done, job.total = done, total
                pause()

            with ExitStack() as undo:
                parts = yield from self._enter(tenant, undo, alone=True)
                job.result = yield from in_steps(lambda: verb(parts, progress))

        self.jobs.add(tenant, Work(job, steps, lambda job: None))
        return job

    def resume(self) -> None:
        """Go on with what was accepted before the service was started. What stands in the way for one tenant is logged,
        and its texts wait for the next start."""
        for folder in sorted(self._folder.glob(f"*{WORK}")):
            tenant = folder.name.removesuffix(WORK)
            if TENANT.fullmatch(tenant):
                try:
                    self._resume(tenant)
                except (ApiError, StoreError, OSError) as error:
                    LOG.error("ingests of tenant %s wait for the next start: %s", tenant, type(error).__name__)

    def _resume(self, tenant: str) -> None:
        clear(self.folder(tenant))
        files = self._files(tenant)
        for accepted in files.unfinished():
            self._add(tenant, files, accepted, source=accepted.source)

    def folder(self, tenant: str) -> Path:
        """Where a tenant's texts and files on their way are, beside its store."""
        return self._folder / f"{tenant}{WORK}"

    def _files(self, tenant: str) -> JobFiles:
        return JobFiles(self.folder(tenant))

    def _add(self, tenant: str, files: JobFiles, accepted: Accepted, *, source: str) -> Job:
        job = Job(
            accepted.job_id,
            "ingest",
            accepted.user,
            accepted.session,
            source,
            total=accepted.n_bytes,
            created_s=accepted.created_ms / 1000,
        )
        steps = _Ingesting(tenant, files, accepted, self._enter, self._limits()).steps
        self.jobs.add(tenant, Work(job, steps, lambda job: files.remove(job.job_id)))
        return job


@dataclass(frozen=True, slots=True)
class _Ingesting:
    """One ingest on its way."""

    tenant: str
    files: JobFiles
    accepted: Accepted
    enter: Enter
    limits: TurnLimits

    def steps(self, job: Job) -> Generator[None, None, None]:
        """Read the text, some of it at a time, each piece durable; closed early, the next call goes on from there."""
        session = self.accepted.session
        with ExitStack() as undo:
            tenant = yield from self._entered(undo)
            while session in tenant.busy:
                yield from tenant.gate.step_out()
                yield
            undo.enter_context(tenant.at_work_on(session))
            source, text = self._opened(tenant)
            job.source = source
            done: Ingested | None = None
            while done is None:
                try:
                    done = yield from in_steps(lambda: self._ingest(tenant, job, source, text))
                except _LetIn:
                    yield from tenant.gate.step_out()
            if not done.skipped:
                tenant.home.watch.ingested(done.n_tokens)
        job.result = ingested_json(done)

    def _entered(self, undo: ExitStack) -> Generator[None, None, Tenant]:
        """The tenant's open parts. Raises NotYet where its store cannot be opened: the text was accepted, and waits."""
        try:
            return (yield from self.enter(self.tenant, undo))
        except StoreLocked as error:
            until = time.monotonic() + _LOCKED_S
            while time.monotonic() < until:
                time.sleep(_STEP_S)
                yield
            raise NotYet(is_soon=True) from error
        except StoreError as error:
            LOG.error("ingests of tenant %s wait for the next start: %s", self.tenant, type(error).__name__)
            raise NotYet(is_soon=False) from error

    def _opened(self, tenant: Tenant) -> tuple[str, bytes]:
        """Source and text. Raises RecordDamaged, KeyMissing or SessionNotFound."""
        data, accepted = self.files.data(self.accepted), self.accepted
        if accepted.sealed_for is None:
            return accepted.source, data
        store = tenant.home.store()
        if store.session(accepted.sealed_for).name != accepted.session:
            raise RecordDamaged("the session of an accepted text has another name now: ingest the text again")
        source, _, text = store.open_aside(accepted.sealed_for, data).partition(b"\0")
        return source.decode(), text

    def _ingest(self, tenant: Tenant, job: Job, source: str, text: bytes) -> Ingested:
        def at_piece(done: int, total: int) -> None:
            job.done, job.total = done, total
            tenant.home.index.feed_if_possible()
            if done < total:
                self.limits.check_bytes(tenant)
                if tenant.gate.is_wanted:
                    raise _LetIn
            pause()

        return tenant.memory.ingest(
            source, session=self.accepted.session, text=text, kv=self.accepted.kv, progress=at_piece
        )
