"""The ask box: an answer with its evidence, at once or as it is written.

Knows the ask route and its events; asks no model itself.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response, StreamingResponse

from livingkv.server import sse
from livingkv.server.api_errors import ApiError
from livingkv.server.page.inside import Reply, given
from livingkv.server.page.rendering import PAGE_HEADERS
from livingkv.server.page.visit import Visit

MODES = ("auto", "extract", "kv", "ground", "exact")
_MOST_TOKENS = 2048


async def ask(visit: Visit) -> Response:
    """The box; posted without a script, with the answer."""
    answer = None
    if visit.request.method == "POST":
        answer = await visit.inside.post("/v1/memory/ask", _asked(visit))
    return visit.html(
        "ask.html",
        question=visit.said("q"),
        session=visit.said("session"),
        mode=visit.said("mode", "auto"),
        max_tokens=visit.said("max_tokens", "128"),
        answer=answer,
        modes=MODES,
    )


async def ask_stream(visit: Visit) -> Response:
    """Events: `text` {text} as it comes, then `done` {html}, or `failed` {html}."""
    reply = await visit.inside.open("POST", "/v1/memory/ask", None, {**_asked(visit), "stream": True})
    return StreamingResponse(
        _events(visit, reply), media_type="text/event-stream", headers={**PAGE_HEADERS, **sse.HEADERS}
    )


def _asked(visit: Visit) -> dict[str, object]:
    mode = visit.said("mode", "auto")
    if mode not in MODES:
        raise ApiError(400, f"mode: {', '.join(MODES)} are allowed", param="mode")
    max_tokens = visit.whole_said("max_tokens", 128, 1, _MOST_TOKENS)
    asked = given(query=visit.said("q"), session=visit.said("session"), user=visit.user)
    return asked | {"mode": mode, "max_tokens": max_tokens}


async def _events(visit: Visit, reply: Reply) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(reply.chunks) as chunks:
        async for name, told in _parsed(chunks):
            if name == "text":
                yield _event("text", {"text": told["text"]})
            elif name == "answer":
                yield _event("done", {"html": visit.text("_answer.html", answer=told)})
            elif name == "error":
                message = told.get("error", told).get("message", "the service failed")
                yield _event("failed", {"html": visit.text("_problem.html", message=message)})
            else:
                yield sse.KEEPALIVE


async def _parsed(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    """The events of a stream; comments have no name."""
    waiting = b""
    async for chunk in chunks:
        *whole, waiting = (waiting + chunk).split(b"\n\n")
        for event in whole:
            fields = dict(line.partition(b": ")[::2] for line in event.split(b"\n"))
            name, body = fields.get(b"event", b"").decode(), fields.get(b"data")
            yield (name, json.loads(body)) if body is not None else ("", {})


def _event(name: str, told: dict[str, object]) -> bytes:
    return f"event: {name}\n".encode() + sse.data(told)
