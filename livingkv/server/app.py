"""The application: the guard before everything, OpenAI's routes, health, metrics, and every error in one envelope.

Knows which parts there are; knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from livingkv import __version__
from livingkv.errors import LivingKVError
from livingkv.server.api_errors import ApiError, api_error
from livingkv.server.counters import CONTENT_TYPE
from livingkv.server.guard import Guard
from livingkv.server.inference_thread import Phase
from livingkv.server.job_routes import job_routes
from livingkv.server.keys import KeyRing
from livingkv.server.mcp_endpoint import MCP_HEADERS, mcp_route
from livingkv.server.memory_routes import memory_routes
from livingkv.server.openai_routes import caller_of, openai_routes
from livingkv.server.page.access import PageAccess
from livingkv.server.page.routes import page_routes
from livingkv.server.plan_routes import plan_routes
from livingkv.server.request_log import RequestLog
from livingkv.server.service import Service
from livingkv.server.session_routes import session_routes
from livingkv.server.transfer_routes import transfer_routes


def create_app(service: Service) -> FastAPI:
    """An ASGI application over a service that the caller starts and stops. Raises InputError for a keys file that
    cannot be read or has no key."""
    keys = None if service.options.keys_file is None else KeyRing(service.options.keys_file)
    app = FastAPI(title="livingkv", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    access = PageAccess(keys)
    app.include_router(openai_routes(service))
    app.include_router(memory_routes(service))
    app.include_router(job_routes(service))
    app.include_router(session_routes(service))
    app.include_router(transfer_routes(service))
    app.include_router(plan_routes(service))
    app.include_router(page_routes(service, access))
    app.router.routes.append(mcp_route(service))
    _add_operations(app, service)
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(LivingKVError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)
    options = service.options
    if options.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.allowed_origins),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "X-Session-Id", *MCP_HEADERS],
            expose_headers=["X-Session-Id", "X-Request-Id", "Retry-After"],
        )
    app.add_middleware(Guard, options=options, keys=keys, counters=service.counters, page=access)
    app.add_middleware(RequestLog, counters=service.counters)  # the last one added stands outermost
    return app


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok", "phase": service.phase.value}

    @app.get("/ready")
    async def ready() -> Response:
        """The model has generated a token, and requests are taken."""
        is_ready = service.phase is Phase.READY
        return JSONResponse({"ready": is_ready, "phase": service.phase.value}, 200 if is_ready else 503)

    @app.get("/version")
    async def version(request: Request) -> dict[str, str]:
        caller_of(request).require("read")
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """What the service counted, in Prometheus' text format."""
        caller_of(request).require("admin")
        return Response(await service.exposition(), media_type=CONTENT_TYPE)


def _answer(error: ApiError) -> Response:
    return JSONResponse(error.envelope(), error.status, headers=error.headers())


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return _answer(error)
    assert isinstance(error, LivingKVError), "registered for these two"
    return _answer(api_error(error))


async def _invalid(_: Request, error: Exception) -> Response:
    """What is wrong with a body, the field named; never what was given, which may be anybody's words."""
    assert isinstance(error, RequestValidationError), "registered for this one"
    problem: Mapping[str, Any] = max(error.errors(), key=lambda each: len(each.get("loc", ())))
    if problem.get("type") == "json_invalid":
        return _answer(ApiError(400, "the body is not JSON"))
    place = [str(part) for part in problem.get("loc", ()) if part != "body" and not _is_type(str(part))]
    field = ".".join(place)
    told = f"{field}: {problem.get('msg', 'it is not valid')}" if field else str(problem.get("msg", "it is not valid"))
    return _answer(ApiError(400, told, param=field or None))


def _is_type(part: str) -> bool:
    """Pydantic names the alternatives of a union among the places."""
    return "[" in part or part in ("str", "int", "constrained-str")


async def _no_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for this one"
    told = {404: "there is no such route", 405: "this method is not allowed here"}
    answer = _answer(ApiError(error.status_code, told.get(error.status_code, str(error.detail))))
    answer.headers.update(error.headers or {})
    return answer
