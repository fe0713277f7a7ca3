"""OpenAI's routes: models, chat completions, completions, embeddings.

Knows bodies and answers; how a turn is made is the service's.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from livingkv.server.answering import answer_stream, answer_whole
from livingkv.server.api_errors import ApiError
from livingkv.server.completing import CompletionRequest
from livingkv.server.guard import Caller
from livingkv.server.replies import ChatAnswer, CompletionAnswer
from livingkv.server.replying import Wish
from livingkv.server.schemas import ChatBody, CompletionBody, EmbeddingBody, Generation
from livingkv.server.service import Service
from livingkv.server.turn_request import TurnRequest
from livingkv.server.whose import is_side_task, whose


def openai_routes(service: Service) -> APIRouter:
    """The routes under /v1."""
    router = APIRouter(prefix="/v1")
    _add_models(router, service)
    _add_chat(router, service)
    _add_completions(router, service)
    _add_embeddings(router, service)
    return router


def caller_of(request: Request) -> Caller:
    """Who asks, as the guard found out."""
    caller = request.state.caller
    assert isinstance(caller, Caller), "the guard lets nobody pass without"
    return caller


def _add_models(router: APIRouter, service: Service) -> None:
    def described() -> dict[str, Any]:
        return {"id": service.model_name, "object": "model", "created": service.started_s, "owned_by": "livingkv"}

    @router.get("/models")
    async def models(request: Request) -> dict[str, Any]:
        caller_of(request).require("read")
        return {"object": "list", "data": [described()]}

    @router.get("/models/{model:path}")
    async def model(model: str, request: Request) -> dict[str, Any]:
        caller_of(request).require("read")
        _check_model(service, model)
        return described()


def _add_chat(router: APIRouter, service: Service) -> None:
    @router.post("/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        _check_model(service, body.model)
        caller = caller_of(request)
        owner = whose(body, request.headers, caller)
        caller.require("write" if owner.is_kept else "read")
        tools = () if body.tool_choice == "none" else tuple(tool.model_dump() for tool in body.tools or ())
        no_recall = _against_recall(body, has_tools=bool(tools))
        asked = TurnRequest(
            messages=tuple(message.plain() for message in body.messages),
            wish=_wish(service, body, body.max_completion_tokens, body.n_likeliest, _names(tools)),
            tools=tools,
            user=owner.user,
            session=owner.session,
            is_kept=owner.is_kept,
            only_new=owner.only_new,
            recall="off" if no_recall else body.recall,
            no_recall=no_recall,
        )
        answer = ChatAnswer(service.model_name, with_logprobs=bool(body.logprobs))
        events = service.turn(caller.tenant, asked)
        if body.stream:
            return await answer_stream(request, events, answer, wants_usage=body.wants_usage)
        return await answer_whole(request, events, answer)


def _add_completions(router: APIRouter, service: Service) -> None:
    @router.post("/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        _check_model(service, body.model)
        caller = caller_of(request)
        caller.require("read")
        prompt = body.prompt
        given: str | tuple[int, ...]
        if isinstance(prompt, list):
            given = prompt[0] if isinstance(prompt[0], str) else tuple(each for each in prompt if isinstance(each, int))
        else:
            given = prompt
        if body.echo and not isinstance(given, str):
            raise ApiError(400, "echo: a prompt of text is needed", param="echo")
        answer = CompletionAnswer(
            service.model_name,
            with_logprobs=body.logprobs is not None,
            echo=given if body.echo and isinstance(given, str) else "",
        )
        events = service.complete(caller.tenant, CompletionRequest(given, _wish(service, body, None, body.logprobs)))
        if body.stream:
            return await answer_stream(request, events, answer, wants_usage=body.wants_usage)
        return await answer_whole(request, events, answer)


def _add_embeddings(router: APIRouter, service: Service) -> None:
    @router.post("/embeddings")
    async def embeddings(body: EmbeddingBody, request: Request) -> Response:
        _check_model(service, body.model)
        caller = caller_of(request)
        caller.require("read")
        found = await service.embed(caller.tenant, _inputs(body))
        if body.dimensions not in (None, found.vectors.shape[1]):
            allowed = f"dimensions: {found.vectors.shape[1]} is what this model has"
            raise ApiError(400, allowed, param="dimensions")
        as_text = body.encoding_format == "base64"
        rows = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(row.astype("<f4").tobytes()).decode() if as_text else row.tolist(),
            }
            for index, row in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": found.n_tokens, "total_tokens": found.n_tokens}
        return JSONResponse({"object": "list", "data": rows, "model": service.model_name, "usage": usage})


def _inputs(body: EmbeddingBody) -> tuple[str | tuple[int, ...], ...]:
    given = body.input
    if isinstance(given, str):
        return (given,)
    if isinstance(given[0], int):
        return (tuple(each for each in given if isinstance(each, int)),)
    return tuple(each if isinstance(each, str) else tuple(each) for each in given if not isinstance(each, int))


def _against_recall(body: ChatBody, *, has_tools: bool) -> str:
    """Why memory is not asked beside this request; "" where it may be."""
    if body.recall == "off":
        return "memory was not asked: recall is off"
    if has_tools or body.n_likeliest is not None:
        return "memory was not asked: tools and logprobs are for the model's own words"
    return "memory was not asked: this is a task beside a conversation" if is_side_task(body) else ""


def _names(tools: Sequence[Any]) -> frozenset[str] | None:
    return frozenset(str(tool["function"]["name"]) for tool in tools) if tools else None


def _wish(
    service: Service,
    body: Generation,
    max_tokens: int | None,
    n_likeliest: int | None,
    tools: frozenset[str] | None = None,
) -> Wish:
    options = service.options
    wanted = max_tokens or body.max_tokens or min(options.default_new_tokens, options.max_new_tokens)
    if wanted > options.max_new_tokens:
        allowed = f"max_tokens: got {wanted}; at most {options.max_new_tokens} are allowed"
        raise ApiError(400, allowed, param="max_tokens")
    return Wish(wanted, body.sampling(), body.stops, n_likeliest, tools)


def _check_model(service: Service, model: str | None) -> None:
    """Raise ApiError where a model is named that is not the one that is served."""
    if model not in (None, service.model_name):
        told = f"the model {model!r} is not served here; {service.model_name!r} is"
        raise ApiError(404, told, param="model", code="model_not_found")
