"""The service's own routes, asked from within the process by the visitor of a page.

Knows ASGI; knows no page. The page can do what docs/API.md says and nothing else: scopes, users and foreign ids are
checked in one place, the route.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Scope

from livingkv.server.api_errors import ApiError
from livingkv.server.guard import Caller

Json = Mapping[str, Any]
Query = Mapping[str, object]
_OF_THE_PAGE = ("route", "endpoint", "path_params", "app_root_path")
_AHEAD = 8


@dataclass(frozen=True, slots=True)
class Reply:
    """A route's answer; its body comes as the route sends it. Closing `chunks` gives the request up."""

    status: int
    headers: Headers
    chunks: AsyncGenerator[bytes, None]

    async def whole(self) -> bytes:
        """The body."""
        return b"".join([chunk async for chunk in self.chunks])


class Inside:
    """The routes, as one visitor may use them. All of its methods raise ApiError where the route refuses."""

    def __init__(self, request: Request, caller: Caller) -> None:
        self._request = request
        self._caller = caller

    async def get(self, path: str, query: Query | None = None) -> Json:
        """What a GET of `path` answers."""
        return await self._json("GET", path, query or {}, None)

    async def post(self, path: str, body: Json | None = None) -> Json:
        """What a POST of a JSON body answers."""
        return await self._json("POST", path, {}, body or {})

    async def patch(self, path: str, body: Json) -> Json:
        """What a PATCH answers."""
        return await self._json("PATCH", path, {}, body)

    async def delete(self, path: str, query: Query | None = None) -> Json:
        """What a DELETE answers."""
        return await self._json("DELETE", path, query or {}, None)

    async def _json(self, method: str, path: str, query: Query, body: Json | None) -> Json:
        reply = await self.open(method, path, query, body)
        answer: Json = json.loads(await reply.whole())
        return answer

    async def open(
        self, method: str, path: str, query: Query | None = None, body: Json | None = None, *, upload: bool = False
    ) -> Reply:
        """The route's answer as it comes. upload: the page's own request body becomes that of the route, unread."""
        headers = {"accept": "*/*", "host": self._request.headers.get("host", "")}
        encoded = b"" if body is None else json.dumps(body).encode()
        if upload:
            kept = ("content-type", "content-length", "transfer-encoding")
            headers |= {name: value for name, value in self._request.headers.items() if name in kept}
        elif body is not None:
            headers |= {"content-type": "application/json", "content-length": str(len(encoded))}
        scope = self._scope(method, path, query or {}, headers)
        reply = await self._begun(scope, None if upload else encoded)
        if reply.status >= 400:
            raise _refusal(reply.status, reply.headers, await reply.whole())
        return reply

    def _scope(self, method: str, path: str, query: Query, headers: Mapping[str, str]) -> Scope:
        outer = {name: value for name, value in self._request.scope.items() if name not in _OF_THE_PAGE}
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return outer | {
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": urlencode(given, doseq=True).encode(),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
            "state": {**outer.get("state", {}), "caller": self._caller},
        }

    async def _begun(self, scope: Scope, body: bytes | None) -> Reply:
        sending, messages = anyio.create_memory_object_stream[Message](_AHEAD)
        unread = [] if body is None else [body]

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            while True:
                message = await self._request.receive()
                if body is None or message["type"] == "http.disconnect":
                    return message

        async def run() -> None:
            async with sending:
                await self._request.app.router(scope, receive, sending.send)

        task = asyncio.ensure_future(run())
        try:
            first = await anext(aiter(messages), None)
        except BaseException:
            task.cancel()
            raise
        if first is None:
            messages.close()
            try:
                await task
            except HTTPException as error:
                raise ApiError(error.status_code, "the service has no such route") from error
            raise AssertionError("a route answers or raises")

        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                async with messages:
                    async for message in messages:
                        yield message.get("body", b"")
                await task
            finally:
                task.cancel()
                await asyncio.wait({task})

        return Reply(first["status"], Headers(raw=first["headers"]), chunks())


def _refusal(status: int, headers: Headers, body: bytes) -> ApiError:
    try:
        told = json.loads(body)["error"]
        message, param, code = str(told["message"]), told.get("param"), told.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, param, code = "the service refused", None, None
    after = headers.get("retry-after", "")
    return ApiError(status, message, param=param, code=code, retry_after_s=int(after) if after.isdecimal() else None)


def given(**fields: object) -> dict[str, object]:
    """The fields that say something."""
    return {name: value for name, value in fields.items() if value not in (None, "", [])}
