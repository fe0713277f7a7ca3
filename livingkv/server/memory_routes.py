"""The memory routes: turn, search, ask, the stored sentences, forgetting, counts (docs/API.md).

Knows bodies, queries and answers; what is done is remembering.py's and unlearning.py's.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from livingkv import __version__
from livingkv.server import sse
from livingkv.server.answering import KEEPALIVE_S
from livingkv.server.api_errors import ApiError
from livingkv.server.keys import Scope as KeyScope
from livingkv.server.memory_bodies import AskBody, ForgetBody, PatchBody, SearchBody, StoredRole, TurnBody
from livingkv.server.memory_shapes import Json
from livingkv.server.openai_routes import caller_of
from livingkv.server.owners import Owner, owner_of
from livingkv.server.remembering import Remembering, no_such_sentence
from livingkv.server.service import Made, Service
from livingkv.server.tenants import Tenant
from livingkv.server.unlearning import Unlearning
from livingkv.server.while_there import POLL_S, while_there
from livingkv.store import IdempotencyKey

T = TypeVar("T")
Events = AsyncGenerator[str | Made[Json], None]
_MOST_DIGITS = 19
_MOST_LISTED = 500


def memory_routes(service: Service) -> APIRouter:
    """The routes under /v1/memory, and /v1/stats."""
    router = APIRouter(prefix="/v1")
    _add_turns(router, service)
    _add_questions(router, service)
    _add_sentences(router, service)
    _add_forgetting(router, service)
    _add_states(router, service)
    _add_stats(router, service)
    return router


async def _call(
    service: Service,
    request: Request,
    scope: KeyScope,
    user: str | None,
    work: Callable[[Remembering], T],
    *,
    alone: bool = False,
) -> T:
    """Do the work for whoever asks, until they go away; what is done alone forgets something, and goes on to its end.
    Raises ApiError."""
    tenant, owner = _asking(request, scope, user)
    made = service.call(tenant, _for(service, owner, work), user=owner.user or "", alone=alone)
    return await (made if alone else while_there(request, made))


def _asking(request: Request, scope: KeyScope, user: str | None) -> tuple[str, Owner]:
    """The tenant and the user. Raises ApiError or InputError."""
    caller = caller_of(request)
    caller.require(scope)
    return caller.tenant, owner_of(request.headers, caller, user)


def _for(service: Service, owner: Owner, work: Callable[[Remembering], T]) -> Callable[[Tenant], T]:
    limits, counters = service.limits, service.counters
    return lambda tenant: work(Remembering(tenant, owner, limits, counters))


def _add_turns(router: APIRouter, service: Service) -> None:
    @router.post("/memory/turn")
    async def turn(body: TurnBody, request: Request) -> Response:
        """With an Idempotency-Key it goes on though the client goes away, which will ask again."""
        _check_length(service, body.max_tokens)
        tenant, owner = _asking(request, "write", body.user)

        async def make(key: IdempotencyKey | None) -> Response:
            work = _for(service, owner, lambda memory: memory.turn(body, key))
            made = service.call(tenant, work, user=owner.user or "")
            return JSONResponse(await (made if key is not None else while_there(request, made)))

        return await service.once.once(request, tenant, owner.user or "", make, unquoted=_unquoted)


def _unquoted(answer: Response) -> Response:
    """What may be told again of a turn once something was forgotten: what it stored, not what it recalled."""
    nothing: Json = {"recalled": [], "answer": None, "confident": False, "confidence": 0.0, "mode": None}
    told = {**json.loads(bytes(answer.body)), **nothing, "reason": "something was forgotten since"}
    return JSONResponse(told)


def _add_questions(router: APIRouter, service: Service) -> None:
    @router.post("/memory/search")
    async def search(body: SearchBody, request: Request) -> Json:
        return await _call(service, request, "read", body.user, lambda memory: memory.search(body))

    @router.post("/memory/ask")
    async def ask(body: AskBody, request: Request) -> Response:
        _check_length(service, body.max_tokens)
        if not body.stream:
            return JSONResponse(await _call(service, request, "read", body.user, lambda memory: memory.ask(body)))
        name, owner = _asking(request, "read", body.user)
        limits, counters = service.limits, service.counters
        events: Events = service.follow(
            name,
            lambda tenant, tell: Remembering(tenant, owner, limits, counters).ask(body, tell),
            user=owner.user or "",
        )
        return await _streamed(request, events)


async def _streamed(request: Request, events: Events) -> Response:
    """Events `text`, then `answer` or `error`. Begins when the question can be asked; raises ApiError before."""
    try:
        await while_there(request, anext(events))
    except BaseException:
        await events.aclose()
        raise
    stream = sse.with_keepalives(_lines(events), request.is_disconnected, poll_s=POLL_S, every_s=KEEPALIVE_S)
    return StreamingResponse(stream, media_type="text/event-stream; charset=utf-8", headers=sse.HEADERS)


async def _lines(events: Events) -> AsyncGenerator[bytes, None]:
    try:
        async for event in events:
            if isinstance(event, Made):
                yield sse.event("answer", event.value)
            elif event:
                yield sse.event("text", {"text": event})
    except ApiError as error:
        yield sse.event("error", error.envelope())
    finally:
        await events.aclose()


def _add_sentences(router: APIRouter, service: Service) -> None:
    @router.get("/memory")
    async def sentences(
        request: Request,
        session: str | None = None,
        user: str | None = None,
        source: str | None = None,
        role: StoredRole | None = None,
        cursor: Annotated[str | None, Query(pattern="^[0-9]{1,19}$")] = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 50,
    ) -> Json:
        after = None if cursor is None else int(cursor)
        return await _call(
            service, request, "read", user, lambda memory: memory.sentences(session, source, role, after, limit)
        )

    @router.get("/memory/{sentence}")
    async def show(sentence: str, request: Request, user: str | None = None) -> Json:
        number = _id_of(sentence)
        return await _call(service, request, "read", user, lambda memory: memory.sentence(number))

    @router.patch("/memory/{sentence}")
    async def replace(sentence: str, body: PatchBody, request: Request) -> Json:
        number = _id_of(sentence)
        return await _call(
            service,
            request,
            "write",
            body.user,
            lambda memory: Unlearning(memory).replace(number, body.text),
            alone=True,
        )


def _add_forgetting(router: APIRouter, service: Service) -> None:
    @router.delete("/memory/{sentence}")
    async def delete(sentence: str, request: Request, user: str | None = None) -> Json:
        number = _id_of(sentence)

        def work(memory: Remembering) -> Json:
            memory.around(number)
            return Unlearning(memory).forget_sentences([number])

        return await _call(service, request, "write", user, work, alone=True)

    @router.post("/memory/forget")
    async def forget(body: ForgetBody, request: Request) -> Json:
        scope: KeyScope = "admin" if body.everything else "write"
        return await _call(
            service,
            request,
            scope,
            body.user,
            lambda memory: Unlearning(memory).forget(body),
            alone=not body.dry_run,
        )


def _add_states(router: APIRouter, service: Service) -> None:
    @router.delete("/states")
    async def forget_states(request: Request, user: str | None = None) -> Json:
        caller = caller_of(request)
        caller.require("write")
        owner = owner_of(request.headers, caller, user)
        return {"receipt": {"states": await service.forget_states(caller.tenant, owner.user)}}


def _add_stats(router: APIRouter, service: Service) -> None:
    @router.get("/stats")
    async def stats(request: Request) -> dict[str, Any]:
        return await _call(service, request, "read", None, lambda memory: memory.stats(__version__))


def _id_of(given: str) -> int:
    """A sentence's id. Raises ApiError, 404, for what cannot be one."""
    if not (given.isascii() and given.isdigit() and len(given) <= _MOST_DIGITS):
        raise no_such_sentence()
    return int(given)


def _check_length(service: Service, max_tokens: int) -> None:
    most = service.options.max_new_tokens
    if max_tokens > most:
        raise ApiError(400, f"max_tokens: got {max_tokens}; at most {most} are allowed", param="max_tokens")
