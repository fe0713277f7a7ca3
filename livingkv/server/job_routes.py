"""The routes of jobs: ingest, prune, reembed, defrag; what jobs there are, one of them, and an end to it.

Knows bodies and answers; what a job does is job_work's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from livingkv.errors import InputError, ModelDamaged, ModelNotFound
from livingkv.regular_files import is_folder
from livingkv.server.api_errors import ApiError
from livingkv.server.guard import Caller
from livingkv.server.job_results import Result, defragged_json, receipt_json, reembedded_json
from livingkv.server.job_schemas import IngestBody, IngestOptions, PruneBody, ReembedBody, job_json
from livingkv.server.job_work import Text
from livingkv.server.jobs import Job
from livingkv.server.openai_routes import caller_of
from livingkv.server.owners import Owner, owner_of
from livingkv.server.service import Service
from livingkv.server.tenants import Tenant
from livingkv.server.uploads import PLAIN
from livingkv.sources import check_text
from livingkv.store import IdempotencyKey

_SOURCE_BYTES = 255


def job_routes(service: Service) -> APIRouter:
    """The routes under /v1."""
    router = APIRouter(prefix="/v1")
    _add_ingest(router, service)
    _add_upkeep(router, service)
    _add_jobs(router, service)
    return router


def _add_ingest(router: APIRouter, service: Service) -> None:
    @router.post("/memory/ingest", status_code=202)
    async def ingest(request: Request) -> Response:
        """A text into a session, as a job; JSON with `text`, or text/plain with the rest in the query."""
        caller = caller_of(request)
        caller.require("write")
        options, text = await _given(request)
        owner = owner_of(request.headers, caller, options.user)
        _check_source(options.source)
        asked = Text(owner.stored(options.session), options.source, text, options.kv)
        limit = service.options.settings.max_line_bytes
        await asyncio.to_thread(check_text, text, options.source, max_line_bytes=limit)

        async def make(key: IdempotencyKey | None) -> Response:
            work = service.work
            kept, sealed_for = await service.call(caller.tenant, lambda tenant: work.check(tenant, asked))
            return _accepted(await asyncio.to_thread(work.accept, caller.tenant, asked, kept, sealed_for))

        return await service.once.once(request, caller.tenant, owner.user or "", make)


async def _given(request: Request) -> tuple[IngestOptions, bytes]:
    """Options and text of a request, whichever way it brings them. Raises RequestValidationError."""
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == PLAIN:
            return IngestOptions.model_validate(dict(request.query_params)), body
        parsed = await asyncio.to_thread(IngestBody.model_validate_json, body)
        return parsed, parsed.text.encode()
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def _check_source(name: str) -> None:
    if len(name.encode()) > _SOURCE_BYTES or not name.isprintable():
        raise InputError(
            "source", repr(name[:_SOURCE_BYTES]), f"1 to {_SOURCE_BYTES} bytes of printable text are allowed"
        )


def _add_upkeep(router: APIRouter, service: Service) -> None:
    @router.post("/memory/prune", status_code=202)
    async def prune(body: PruneBody, request: Request) -> Response:
        caller, owner = _admin(request, body.user)
        named = None if body.session is None else owner.stored(body.session)
        if named is not None:
            await service.call(caller.tenant, lambda tenant: tenant.memory.session(named))
        job = service.work.store_job(
            caller.tenant,
            "prune",
            owner.user or "",
            named,
            "sentences",
            lambda tenant, progress: receipt_json(
                tenant.memory.prune(
                    session=_prunable(tenant, owner) if named is None else named, keep=body.keep, below=body.below
                )
            ),
        )
        return _accepted(job)

    @router.post("/memory/reembed", status_code=202)
    async def reembed(body: ReembedBody, request: Request) -> Response:
        caller, _ = _admin(request, None)
        _check_embedder(body.embedder)
        job = service.work.store_job(
            caller.tenant,
            "reembed",
            "",
            None,
            "sentences",
            lambda tenant, progress: _reembedded(tenant, body.embedder, progress),
        )
        return _accepted(job)

    @router.post("/memory/defrag", status_code=202)
    async def defrag(request: Request) -> Response:
        caller, _ = _admin(request, None)
        job = service.work.store_job(
            caller.tenant,
            "defrag",
            "",
            None,
            "segments",
            lambda tenant, progress: defragged_json(tenant.memory.defrag()),
        )
        return _accepted(job)


def _add_jobs(router: APIRouter, service: Service) -> None:
    def own(request: Request, job_id: str, user: str | None) -> tuple[Caller, Job]:
        caller = caller_of(request)
        owner = owner_of(request.headers, caller, user)
        job = service.work.jobs.find(caller.tenant, job_id)
        if job is None or not owner.is_one(job.user):
            raise ApiError(404, "there is no such job", code="job_not_found")
        return caller, job

    @router.get("/jobs")
    async def jobs(request: Request, user: str | None = None) -> dict[str, Any]:
        caller = caller_of(request)
        caller.require("read")
        owner = owner_of(request.headers, caller, user)
        return {"jobs": [job_json(job) for job in service.work.jobs.of(caller.tenant) if owner.is_one(job.user)]}

    @router.get("/jobs/{job_id}")
    async def job(job_id: str, request: Request, user: str | None = None) -> dict[str, Any]:
        caller, found = own(request, job_id, user)
        caller.require("read")
        return job_json(found)

    @router.delete("/jobs/{job_id}")
    async def cancel(job_id: str, request: Request, user: str | None = None) -> dict[str, Any]:
        caller, found = own(request, job_id, user)
        caller.require("write" if found.kind == "ingest" else "admin")
        await asyncio.to_thread(service.work.jobs.cancel, caller.tenant, found)
        return job_json(found)


def _admin(request: Request, user: str | None) -> tuple[Caller, Owner]:
    caller = caller_of(request)
    caller.require("admin")
    return caller, owner_of(request.headers, caller, user)


def _prunable(tenant: Tenant, owner: Owner) -> list[str]:
    """The sessions of a user that are not pinned."""
    return [row.name for row in tenant.home.store().sessions() if owner.owns(row.name) and not row.pinned]


def _check_embedder(name: str) -> None:
    """Folders of the machine are for who runs the service: loading one may run code that lies in it."""
    if name.startswith(("/", ".", "~")) or is_folder(name):
        raise InputError("embedder", repr(name), "a name is allowed; with a folder livingkv reembed does it")


def _reembedded(tenant: Tenant, embedder: str, progress: Callable[[int, int], None]) -> Result:
    try:
        return reembedded_json(tenant.memory.reembed(embedder, progress=progress))
    except (ModelNotFound, ModelDamaged) as error:
        code = "model_not_found" if isinstance(error, ModelNotFound) else "model_damaged"
        raise ApiError(400, str(error), param="embedder", code=code) from error


def _accepted(job: Job) -> Response:
    return JSONResponse({"job": job_json(job)}, 202)
