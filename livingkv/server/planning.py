"""Plans for callers of the service: made, checked, and what they are made by.

Knows the planner and whose model is served; reads no path that a caller names. Work is done on a thread of its own, one
plan at a time, so that nobody's config keeps others waiting for an answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from livingkv.errors import InputError, ModelError
from livingkv.planner.check import check_bytes, check_plan
from livingkv.planner.fact import ModelFacts
from livingkv.planner.facts import cached_facts, config_facts
from livingkv.planner.inputs import Stamp, inputs_of
from livingkv.planner.laws import laws
from livingkv.planner.options import amounts_of
from livingkv.planner.paths import paths
from livingkv.planner.plan import VERSION, plan_of
from livingkv.server.api_errors import ApiError
from livingkv.server.plan_bodies import PlanBody
from livingkv.server.service import Service

T = TypeVar("T")


async def planned(service: Service, body: PlanBody) -> dict[str, Any]:
    """The plan. Raises ApiError or InputError."""
    config = None if body.model is not None or body.config is not None else service.model_config
    served = service.model_name if config is not None or body.model is not None else None
    if body.model is not None and body.model == served:
        config = service.model_config

    def work() -> dict[str, Any]:
        given = amounts_of(body.inputs)
        stamp = None if body.priced is None else Stamp(**body.priced.model_dump())
        return plan_of(inputs_of(_facts(body, served, config), given, None, stamp))

    return await _aside(service, work)


async def checked(service: Service, plan: bytes | dict[str, Any], model: str | None) -> dict[str, Any]:
    """ok and errors. model: to compare with. Raises ApiError for one that is not known here."""
    config = service.model_config if model is not None and model == service.model_name else None

    def work() -> dict[str, Any]:
        facts = None if model is None else _named(model, config)
        errors = check_bytes(plan, facts) if isinstance(plan, bytes) else check_plan(plan, facts)
        return {"ok": not errors, "errors": errors}

    return await _aside(service, work)


def laws_json() -> dict[str, Any]:
    """Symbols, constants, laws and paths, as plans are computed by them."""
    book = laws()
    rows = [{**asdict(law), "needs": list(law.needs)} for law in book.laws.values()]
    found: dict[str, Any] = {
        "version": VERSION,
        "symbols": {name: asdict(one) for name, one in book.symbols.items()},
        "constants": {name: asdict(one) for name, one in book.constants.items()},
        "laws": rows,
        "paths": [asdict(path) for path in paths().paths],
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))  # tuples as lists
    return plain


def _facts(body: PlanBody, served: str | None, config: Any) -> ModelFacts:
    if body.config is not None:
        return config_facts("config", body.config)
    name = body.model or served
    assert name is not None, "without a config there is a name"
    return _named(name, config)


def _named(name: str, config: Any) -> ModelFacts:
    if config is not None:
        return config_facts(name, config.to_dict())
    try:
        return cached_facts(name)
    except ModelError as error:
        told = f"{name[:100]!r} is neither the served model nor a hub id in the local cache: give its config"
        raise ApiError(404, told, param="model", code="model_not_found") from error


async def _aside(service: Service, work: Callable[[], T]) -> T:
    def alone() -> T:
        with service.one_plan:
            return work()

    try:
        return await asyncio.to_thread(alone)
    except InputError as error:
        raise ApiError(400, str(error), param=error.field) from error
