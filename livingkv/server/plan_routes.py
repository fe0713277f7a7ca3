"""The routes of the planner: a plan, its check, and the laws.

Knows bodies and answers; the work is planning's.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from livingkv.server.openai_routes import caller_of
from livingkv.server.plan_bodies import PlanBody
from livingkv.server.planning import checked, laws_json, planned
from livingkv.server.service import Service


def plan_routes(service: Service) -> APIRouter:
    """The routes under /v1/plan."""
    router = APIRouter(prefix="/v1/plan")

    @router.post("")
    async def plan(body: PlanBody, request: Request) -> dict[str, Any]:
        """What a model needs, and which paths are open."""
        caller_of(request).require("read")
        return await planned(service, body)

    @router.post("/check")
    async def check(
        request: Request, model: Annotated[str | None, Query(min_length=1, max_length=200)] = None
    ) -> dict[str, Any]:
        """The body is a plan; everything that does not follow is told."""
        caller_of(request).require("read")
        return await checked(service, await request.body(), model)

    @router.get("/laws")
    async def laws(request: Request) -> dict[str, Any]:
        """Symbols, laws and paths."""
        caller_of(request).require("read")
        return laws_json()

    return router
