"""The routes of sessions: made, listed, shown, changed, forgotten, checked, restored and forked.

Knows bodies and answers; what is done is the library's.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from livingkv.errors import SessionExists, SessionNotFound
from livingkv.server.job_results import receipt_json
from livingkv.server.openai_routes import caller_of
from livingkv.server.owners import Owner, owner_of
from livingkv.server.service import Service
from livingkv.server.session_schemas import CreateBody, ForkBody, PatchBody, UserBody
from livingkv.server.session_shapes import Shape, session_details, session_json, session_page
from livingkv.server.session_state import SessionState
from livingkv.server.tenants import Tenant
from livingkv.server.while_there import while_there
from livingkv.store import IdempotencyKey, SessionRow

Limit = Annotated[int, Query(ge=1, le=1000)]


def session_routes(service: Service) -> APIRouter:
    """The routes under /v1/sessions but export."""
    router = APIRouter(prefix="/v1/sessions")
    _add_making(router, service)
    _add_looking(router, service)
    _add_changing(router, service)
    _add_state(router, service)
    return router


def asked_for(request: Request, scope: Any, user: str | None) -> tuple[str, Owner]:
    """The tenant, and whose sessions a request is about. Raises ApiError where the key does not allow it."""
    caller = caller_of(request)
    caller.require(scope)
    return caller.tenant, owner_of(request.headers, caller, user)


def row_of(tenant: Tenant, stored: str) -> SessionRow:
    """A session that there is. Raises SessionNotFound."""
    if not tenant.home.has_store:
        raise SessionNotFound("nothing is stored yet")
    return tenant.home.store().session(stored)


def require_room(service: Service, tenant: Tenant, stored: str) -> None:
    """Raise SessionExists or ApiError where there may be no new session of this name."""
    tenant.require_unwritten(stored.__eq__)
    with contextlib.suppress(SessionNotFound):
        row_of(tenant, stored)
        raise SessionExists("a session of this name exists already: choose another name")
    service.limits.check_sessions(tenant)
    service.limits.check_bytes(tenant)


def _add_making(router: APIRouter, service: Service) -> None:
    @router.post("", status_code=201)
    async def create(body: CreateBody, request: Request) -> Response:
        tenant, owner = asked_for(request, "write", body.user)
        stored = owner.stored(body.name)

        def work(parts: Tenant, key: IdempotencyKey | None) -> Shape:
            if key is not None and parts.home.request(key) is not None:
                return session_json(parts.home, row_of(parts, stored))
            require_room(service, parts, stored)
            row = parts.home.session_for_writing(stored, kv=body.kv, encrypt=body.encrypt, once=key)
            return session_json(parts.home, row)

        async def make(key: IdempotencyKey | None) -> Response:
            made = service.call(tenant, lambda parts: work(parts, key), alone=body.encrypt)
            return JSONResponse(await made, 201)

        return await service.once.once(request, tenant, owner.user or "", make)

    @router.post("/{name}/fork", status_code=201)
    async def fork(name: str, body: ForkBody, request: Request) -> Response:
        tenant, owner = asked_for(request, "write", body.user)
        origin, stored = owner.stored(name), owner.stored(body.name)

        def work(parts: Tenant, key: IdempotencyKey | None) -> Shape:
            if key is None or parts.home.request(key) is None:
                row_of(parts, origin)
                require_room(service, parts, stored)
                parts.memory.fork(origin, stored, once=key)
                parts.renew_conversations()
            return session_json(parts.home, row_of(parts, stored))

        async def make(key: IdempotencyKey | None) -> Response:
            return JSONResponse(await service.call(tenant, lambda parts: work(parts, key)), 201)

        return await service.once.once(request, tenant, owner.user or "", make)


def _add_looking(router: APIRouter, service: Service) -> None:
    @router.get("")
    async def listed(
        request: Request, user: str | None = None, cursor: str | None = None, limit: Limit = 50
    ) -> dict[str, Any]:
        tenant, owner = asked_for(request, "read", user)
        return await service.call(tenant, lambda parts: session_page(parts.home, owner.user, cursor, limit))

    @router.get("/{name}")
    async def shown(name: str, request: Request, user: str | None = None) -> Shape:
        tenant, owner = asked_for(request, "read", user)
        stored = owner.stored(name)
        return await service.call(tenant, lambda parts: session_details(parts.home, row_of(parts, stored)))


def _add_changing(router: APIRouter, service: Service) -> None:
    @router.patch("/{name}")
    async def changed(name: str, body: PatchBody, request: Request) -> Shape:
        tenant, owner = asked_for(request, "write", body.user)
        stored = owner.stored(name)
        wanted = stored if body.name is None else owner.stored(body.name)

        def work(parts: Tenant) -> Shape:
            row_of(parts, stored)
            parts.require_unwritten(stored.__eq__)
            if wanted != stored:
                parts.require_unwritten(wanted.__eq__)
                parts.memory.rename(stored, wanted)
            if body.pinned is not None:
                parts.memory.pin(wanted, pinned=body.pinned)
            return session_json(parts.home, row_of(parts, wanted))

        return await service.call(tenant, work, alone=wanted != stored)

    @router.delete("/{name}")
    async def forgotten(name: str, request: Request, user: str | None = None, dry_run: bool = False) -> dict[str, Any]:
        tenant, owner = asked_for(request, "write", user)
        stored = owner.stored(name)

        def work(parts: Tenant) -> dict[str, Any]:
            row_of(parts, stored)
            if dry_run:
                return {"counts": receipt_json(parts.memory.forget(session=stored, dry_run=True))["counts"]}
            parts.require_unwritten(stored.__eq__)
            return {"receipt": receipt_json(parts.memory.forget(session=stored))}

        return await service.call(tenant, work, alone=not dry_run)


def _add_state(router: APIRouter, service: Service) -> None:
    @router.post("/{name}/save")
    async def saved(
        name: str, request: Request, body: UserBody | None = None, user: str | None = None
    ) -> dict[str, Any]:
        """Everything that was acknowledged is durable already: this checks it."""
        tenant, owner = asked_for(request, "write", user if body is None else body.user)
        stored = owner.stored(name)
        made = service.call(tenant, lambda parts: SessionState(parts.home, row_of(parts, stored)).saved())
        return await while_there(request, made)

    @router.post("/{name}/restore")
    async def restored(
        name: str, request: Request, body: UserBody | None = None, user: str | None = None
    ) -> dict[str, Any]:
        """What the next turn attends is in device memory on return."""
        tenant, owner = asked_for(request, "write", user if body is None else body.user)
        stored = owner.stored(name)

        def work(parts: Tenant) -> dict[str, Any]:
            state = SessionState(parts.home, row_of(parts, stored))
            parts.require_unwritten(stored.__eq__)
            return state.restored(service.counters)

        return await while_there(request, service.call(tenant, work))
