"""The routes by which sessions leave and come as files.

Knows queries, bodies and answers; the files are transfers'.
"""

from __future__ import annotations

import os
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from livingkv.server.owners import session_of
from livingkv.server.service import Service
from livingkv.server.session_routes import asked_for, require_room, row_of
from livingkv.server.session_shapes import Shape, session_json
from livingkv.server.stepwise import aside
from livingkv.server.tenants import Tenant
from livingkv.server.transfers import Received, exported, imported, name_in, received, sent
from livingkv.server.uploads import BINARY
from livingkv.store import IdempotencyKey


def transfer_routes(service: Service) -> APIRouter:
    """Export and import, under /v1."""
    router = APIRouter(prefix="/v1")

    @router.get("/sessions/{name}/export")
    async def exporting(
        name: str, request: Request, user: str | None = None, kv: bool = True, decrypt: bool = False
    ) -> Response:
        """The session as one file; an encrypted one only where an admin says that it may be read by all."""
        tenant, owner = asked_for(request, "admin" if decrypt else "read", user)
        stored, folder = owner.stored(name), service.work.folder(tenant)
        file = await service.call(
            tenant, lambda parts: exported(parts, row_of(parts, stored), folder, kv=kv, decrypt=decrypt)
        )
        headers = {
            "Content-Length": str(os.fstat(file.fileno()).st_size),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}.lkvx",
        }
        return StreamingResponse(sent(file), media_type=BINARY, headers=headers)

    @router.post("/import", status_code=201)
    async def importing(
        request: Request, name: str | None = None, user: str | None = None, kv: bool = True
    ) -> Response:
        """A session made from an exported file, under its own name or another."""
        tenant, owner = asked_for(request, "write", user)
        if name is not None:
            owner.stored(name)
        await service.call(tenant, service.limits.check_bytes)
        async with received(service.work.folder(tenant), request.stream()) as file:

            async def make(key: IdempotencyKey | None) -> Response:
                return JSONResponse(await service.call(tenant, lambda parts: work(parts, file, key), alone=True), 201)

            def work(parts: Tenant, file: Received, key: IdempotencyKey | None) -> Shape:
                own = aside(lambda: name_in(file.path))
                stored = owner.stored(session_of(own) if name is None else name)
                if key is not None and parts.home.request(key) is not None:
                    return session_json(parts.home, row_of(parts, stored))
                require_room(service, parts, stored)
                service.limits.check_bytes(parts, file.n_bytes)
                return session_json(parts.home, imported(parts, file.path, stored, kv=kv, once=key))

            return await service.once.once(request, tenant, owner.user or "", make, body_digest=file.digest)

    return router
