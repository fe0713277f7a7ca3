"""The log, and what stands outermost of every request: its id, its line in the log, and that it is counted.

Knows HTTP as ASGI has it, and the form of log lines. A line has method, route, status and time; never a query, a body,
a path with a name in it or an address.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from livingkv.server.counters import Counters
from livingkv.server.options import LogFormat

LOG = logging.getLogger("livingkv.server")
REQUEST_ID = "X-Request-Id"
NO_ROUTE = "(no route)"
_WELL_FORMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,63}")
"""Without an underscore: a key that was put there by mistake comes into no log."""
_METHODS = ("GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS")
_GONE = 499
"""The status of a request whose client went away before anything was sent."""


class RequestLog:
    """ASGI middleware, outermost. Answers carry the request's id: the client's own where it is well-formed."""

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self._app = app
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, request_id = time.perf_counter(), _GONE, _id_of(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        is_told = False

        def tell() -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                self._end(scope, status, time.perf_counter() - started, request_id)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            elif not message.get("more_body", False):
                tell()  # before the client has all of it and asks what was counted
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            tell()

    def _end(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = route_of(scope)
        self._counters.answered(method, route, status, seconds)
        facts = {"request_id": request_id, "method": method, "route": route, "status": status}
        told = f"{method} {route} {status} {seconds * 1000:.0f} ms {request_id}"
        LOG.info("%s", told, extra={"facts": facts | {"ms": round(seconds * 1000, 1)}})


def route_of(scope: Scope) -> str:
    """The route's template where there is one: a path may hold a name that somebody chose."""
    path = getattr(scope.get("route"), "path", None)
    if isinstance(path, str):
        return path
    is_mounted = scope.get("endpoint") is not None and bool(scope.get("root_path"))
    return str(scope["root_path"]) if is_mounted else NO_ROUTE


def _id_of(headers: Headers) -> str:
    given = ", ".join(headers.getlist(REQUEST_ID))
    return given if _WELL_FORMED.fullmatch(given) else uuid4().hex


class _JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        facts: Mapping[str, Any] = getattr(record, "facts", {})
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": "request" if facts else record.getMessage(),
            **facts,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def formatter(form: LogFormat) -> logging.Formatter:
    """Lines of text, or of JSON."""
    if form == "json":
        return _JsonLines()
    return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def start_logging(form: LogFormat) -> None:
    """Log to standard error, in this process, from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it quotes requests; tools that fail are in our own log
