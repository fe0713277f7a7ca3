"""What every request passes before a route sees it: its Host and Origin, its size, its key, its rate.

Knows HTTP as ASGI has it; knows no route's body. What it answers itself is counted and logged by request_log.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from livingkv.server.api_errors import ApiError, internal, not_ready, without_values
from livingkv.server.counters import Counters
from livingkv.server.keys import DEFAULT_TENANT, ApiKey, KeyRing
from livingkv.server.keys import Scope as KeyScope
from livingkv.server.limits import Rate
from livingkv.server.options import ServerOptions, is_loopback
from livingkv.server.page.refusing import refusal
from livingkv.server.receiving import Receiving
from livingkv.server.request_headers import check_headers
from livingkv.server.uploads import counted, upload_of

if TYPE_CHECKING:
    from livingkv.server.page.access import PageAccess

LOG = logging.getLogger("livingkv.server")
OPEN_PATHS = ("/health", "/ready")
_STRANGERS = "strangers"
"""For whom the rate of the page's visitors without a key is kept; no key's id."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the tenant comes from the key, never from what the request says. key: None where none is needed."""

    tenant: str
    key: ApiKey | None = None

    @property
    def forwards_users(self) -> bool:
        """Its headers say for whom it asks."""
        return self.key is not None and self.key.forwards_users

    def require(self, scope: KeyScope) -> None:
        """Raise ApiError where the key does not allow this."""
        if self.key is not None and not self.key.allows(scope):
            raise ApiError(403, f"the key allows {', '.join(self.key.scopes)}; this needs {scope}", code="scope")


class Guard:
    """ASGI middleware; puts a `Caller` into the request's state. Visitors of the page come with a cookie instead of a
    key: who they are and what they may is for the page."""

    def __init__(
        self, app: ASGIApp, options: ServerOptions, keys: KeyRing | None, counters: Counters, page: PageAccess
    ) -> None:
        self._app = app
        self._options = options
        self._keys = keys
        self._page = page
        self._receiving = Receiving(options, counters)
        self._rate = self._preflights = None
        if options.requests_per_minute is not None:
            self._rate, self._preflights = Rate(options.requests_per_minute), Rate(options.requests_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        was_sent = False

        async def noted(message: Message) -> None:
            nonlocal was_sent
            was_sent = True
            await send(message)

        try:
            await self._pass(scope, receive, noted)
        except ApiError as error:
            await self._refuse(error, scope, noted)
        except asyncio.CancelledError:  # only a service that stops cancels requests: this one ends here
            if not was_sent:
                with contextlib.suppress(asyncio.CancelledError):
                    await self._refuse(not_ready("the service is stopping"), scope, noted)
        except Exception as error:  # the edge of a request: told without any content, and recorded
            LOG.error("a request failed", exc_info=without_values(error))
            if not was_sent:
                await self._refuse(internal(), scope, noted)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        check_headers(headers)
        self._check_host(headers)
        self._check_origin(headers)
        caller = Caller(DEFAULT_TENANT)
        is_page, is_stranger = self._page.covers(scope["path"]), False
        if is_page:
            is_stranger = self._is_stranger(scope["path"], headers)
        elif self._is_preflight(scope, headers):
            if self._preflights is not None:
                self._preflights.take(_address(scope))
        elif scope["path"] not in OPEN_PATHS:
            caller = self._caller(headers)
            if self._rate is not None:
                self._rate.take(caller.key.key_id if caller.key else caller.tenant)
        if not is_page:
            scope.setdefault("state", {})["caller"] = caller
        if scope["method"] in ("POST", "PUT", "PATCH") and not is_stranger:
            upload = upload_of(scope["path"], self._options)
            _check_type(headers, upload.kinds)
            if upload.is_streamed:
                with self._receiving.place():
                    await self._app(scope, counted(headers, receive, upload.max_bytes), send)
                return
            receive = await self._receiving.whole(headers, receive, upload.max_bytes)
        await self._app(scope, receive, send)

    def _is_stranger(self, path: str, headers: Headers) -> bool:
        """True for a visitor of the page who needs a key first: no body of theirs is received. Visits are counted, but
        for the files of the page; those of strangers together."""
        caller = self._page.caller(headers)
        if self._rate is not None and not path.startswith("/static/"):
            self._rate.take(_STRANGERS if caller is None else caller.key.key_id if caller.key else caller.tenant)
        return caller is None and not self._page.is_open(path)

    def _check_host(self, headers: Headers) -> None:
        """On loopback a foreign Host means that a web page had its own name point here (DNS rebinding)."""
        if not is_loopback(self._options.host) and not self._options.allowed_hosts:
            return
        host = _host_of(headers.get("host", ""))
        if not (is_loopback(host) or host in (self._options.host, *self._options.allowed_hosts)):
            raise ApiError(403, "this Host is not served here", code="host_not_allowed")

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is None or origin in self._options.allowed_origins:
            return
        if urlsplit(origin).netloc != headers.get("host"):
            raise ApiError(403, "web pages of this origin are not served", code="origin_not_allowed")

    def _is_preflight(self, scope: Scope, headers: Headers) -> bool:
        """A browser asks whether a page that is allowed may send a request; it never sends a key with that."""
        is_asked = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        return is_asked and headers.get("origin") in self._options.allowed_origins

    def _caller(self, headers: Headers) -> Caller:
        if self._keys is None:
            return Caller(DEFAULT_TENANT)
        scheme, _, presented = headers.get("authorization", "").partition(" ")
        key = self._keys.find(presented.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            raise ApiError(401, "a valid API key is needed: Authorization: Bearer lkv_...", code="invalid_api_key")
        return Caller(key.tenant, key)

    async def _refuse(self, error: ApiError, scope: Scope, send: Send) -> None:
        """Answer with an error, which a page that is allowed may read; at the web page with a page."""
        if self._page.covers(scope["path"]):
            told = refusal(error, Headers(scope=scope))
            await send({"type": "http.response.start", "status": told.status_code, "headers": told.raw_headers})
            await send({"type": "http.response.body", "body": told.body})
            return
        body = json.dumps(error.envelope()).encode()
        named = {"content-type": "application/json", "content-length": str(len(body)), **error.headers()}
        origin = Headers(scope=scope).get("origin")
        if origin is not None and origin in self._options.allowed_origins:
            named |= {
                "access-control-allow-origin": origin,
                "access-control-expose-headers": "Retry-After, X-Request-Id",
            }
            named["vary"] = "Origin"
        headers = [(name.lower().encode(), value.encode()) for name, value in named.items()]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _check_type(headers: Headers, kinds: Sequence[str]) -> None:
    """A web page of another origin cannot send JSON as such without asking first."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if has_body and kind not in kinds:
        raise ApiError(415, f"Content-Type: {' or '.join(kinds)} is needed", code="content_type")


def _address(scope: Scope) -> str:
    """Where a request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _host_of(header: str) -> str:
    return urlsplit(f"//{header}").hostname or ""
