"""A request's events as its HTTP answer: whole, or as a stream of chunks. A client that goes away ends the work.

Knows HTTP and events; knows nothing of what is asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from livingkv.server import sse
from livingkv.server.events import Began, Done, Event, Failed, Wrote
from livingkv.server.replies import ChatAnswer, CompletionAnswer, shown_session
from livingkv.server.request_headers import shown_name
from livingkv.server.while_there import POLL_S, while_there

KEEPALIVE_S = 10.0

Answer = ChatAnswer | CompletionAnswer


async def answer_whole(request: Request, events: AsyncGenerator[Event, None], answer: Answer) -> Response:
    """The answer at once. Raises ApiError."""
    began, wrote, done = await while_there(request, _collected(events))
    return JSONResponse(answer.whole(began, wrote, done), headers=_headers(began.session))


async def _collected(events: AsyncGenerator[Event, None]) -> tuple[Began, list[Wrote], Done]:
    began, wrote = Began(0, 0, 0, None), list[Wrote]()
    try:
        async for event in events:
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Began):
                began = event
            elif isinstance(event, Wrote):
                wrote.append(event)
            else:
                return began, wrote, event
    finally:
        await events.aclose()
    raise AssertionError("events end with Done or Failed")


async def answer_stream(
    request: Request, events: AsyncGenerator[Event, None], answer: Answer, *, wants_usage: bool
) -> Response:
    """The answer as a stream, whose first chunk waits until the prompt was found fit. Raises ApiError before that."""
    first = await while_there(request, _first(events))
    lines = _lines(first, events, answer, wants_usage=wants_usage)
    headers = _headers(first.session) | sse.HEADERS
    stream = sse.with_keepalives(lines, request.is_disconnected, poll_s=POLL_S, every_s=KEEPALIVE_S)
    return StreamingResponse(stream, media_type="text/event-stream; charset=utf-8", headers=headers)


async def _first(events: AsyncGenerator[Event, None]) -> Began:
    try:
        event = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    if isinstance(event, Began):
        return event
    await events.aclose()
    assert isinstance(event, Failed), "Began comes first"
    raise event.error


async def _lines(
    began: Began, events: AsyncGenerator[Event, None], answer: Answer, *, wants_usage: bool
) -> AsyncIterator[bytes]:
    try:
        yield sse.data(answer.first())
        async for event in events:
            if isinstance(event, Wrote):
                yield sse.data(answer.more(event))
            elif isinstance(event, Failed):
                yield sse.data(event.error.envelope())
                return
            elif isinstance(event, Done):
                for chunk in answer.last(event):
                    yield sse.data(chunk)
                if wants_usage:
                    yield sse.data(answer.usage(began, event))
                yield sse.DONE
    finally:
        await events.aclose()


def _headers(session: str | None) -> dict[str, str]:
    shown = shown_session(session)
    return {} if shown is None else {"X-Session-Id": shown_name(shown)}
