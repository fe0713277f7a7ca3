"""One request of a browser: who asks, for which user, what a form said, and how it is answered.

Knows forms, tokens and HTML; what the pages say is for their handlers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from livingkv.errors import LivingKVError
from livingkv.server.api_errors import ApiError, api_error
from livingkv.server.guard import Caller
from livingkv.server.keys import Scope
from livingkv.server.page.access import (
    COOKIE,
    CSRF_FIELD,
    CSRF_HEADER,
    LOGIN,
    STATIC,
    PageAccess,
    new_visit_id,
    visit_id_of,
)
from livingkv.server.page.changes import Change, Changes
from livingkv.server.page.inside import Inside
from livingkv.server.page.rendering import PAGE_HEADERS, Rendering
from livingkv.server.page.samples import Samples
from livingkv.server.service import Service

_MOST_FIELDS = 2000
_MOST_DIGITS = 18
_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class PageParts:
    """What all pages share."""

    service: Service
    access: PageAccess
    rendering: Rendering
    changes: Changes
    samples: Samples


@dataclass(frozen=True, slots=True)
class Visit:
    """A request and its answer. caller: None on the pages that are open to all. form: what was posted."""

    request: Request
    parts: PageParts
    visit_id: str
    caller: Caller | None
    form: Mapping[str, list[str]]

    @property
    def inside(self) -> Inside:
        """The service's routes, as this visitor may use them."""
        assert self.caller is not None, "open pages ask nothing"
        return Inside(self.request, self.caller)

    @property
    def user(self) -> str:
        """For which user within the tenant; empty for none."""
        return self.said("user")

    @property
    def tenant(self) -> str:
        """Whose store it is; the key says so."""
        assert self.caller is not None, "open pages belong to nobody"
        return self.caller.tenant

    def note(self, what: str, of: str, receipt: Mapping[str, Any] | None = None) -> None:
        """Keep in mind what this visitor changed."""
        key = None if self.caller is None else self.caller.key
        by = "" if key is None else key.name or key.key_id
        self.parts.changes.add(self.tenant, Change(what, of, by, receipt))

    def said(self, name: str, default: str = "") -> str:
        """A field of the form, or of the address; surrounding space is none of it."""
        posted = self.form.get(name)
        return (posted[0] if posted else self.request.query_params.get(name, default)).strip()

    def all_said(self, name: str) -> list[str]:
        """A field that may be there several times."""
        return self.form.get(name) or self.request.query_params.getlist(name)

    def whole_said(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number within limits. Raises ApiError."""
        text = self.said(name) or str(default)
        if not (text.isdecimal() and len(text) <= _MOST_DIGITS and least <= int(text) <= most):
            raise ApiError(400, f"{name}: {least} to {most} is allowed", param=name)
        return int(text)

    def allows(self, scope: Scope) -> bool:
        """Whether the visitor may; what it may not is not shown, and the routes refuse it."""
        return self.caller is not None and (self.caller.key is None or self.caller.key.allows(scope))

    @property
    def is_part(self) -> bool:
        """True where a script puts the answer into a page that is there."""
        return self.request.headers.get("hx-request") == "true"

    def link(self, path: str, **query: object) -> str:
        """An address of the page, for the same user unless one is named."""
        named = {"user": self.user, **query}
        given = {name: value for name, value in named.items() if value not in (None, "")}
        return f"{path}?{urlencode(given, doseq=True)}" if given else path

    def html(self, template: str, status: int = 200, **values: Any) -> Response:
        """A page; where a script asked for a part, `template` is that part's."""
        return self.parts.rendering.html(template, status, **self._common(), **values)

    def text(self, template: str, **values: Any) -> str:
        """A part of a page as text."""
        return self.parts.rendering.text(template, **self._common(), **values)

    def _common(self) -> dict[str, Any]:
        key = None if self.caller is None else self.caller.key
        return {
            "link": self.link,
            "user": self.user,
            "csrf": self.parts.access.token(self.visit_id),
            "can_write": self.allows("write"),
            "can_admin": self.allows("admin"),
            "is_in": self.caller is not None,
            "needs_key": self.parts.access.needs_key,
            "key_name": "" if key is None else key.name or key.key_id,
            "tenant": "" if self.caller is None else self.caller.tenant,
            "here": self.request.url.path,
            "is_part": self.is_part,
        }

    def go(self, path: str, **query: object) -> Response:
        """Send the browser to another page."""
        address = self.link(path, **query)
        if self.is_part:
            return Response(status_code=204, headers={"HX-Redirect": address, **PAGE_HEADERS})
        return RedirectResponse(address, 303, headers=dict(PAGE_HEADERS))

    def set_cookie(self, response: Response, visit_id: str) -> None:
        """Have the browser come back with this id."""
        is_secure = self.request.url.scheme == "https"
        response.set_cookie(COOKIE, visit_id, path="/", httponly=True, samesite="strict", secure=is_secure)


Handler = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Pages:
    """The page's routes: each is a handler from a visit to an answer."""

    router: APIRouter
    parts: PageParts

    def add(self, method: str, path: str, handler: Handler, *, upload: bool = False) -> None:
        """Answer `path` with the handler's page, or with a page that says why not. upload: the body is no form, and
        is left for the handler."""

        async def answer(request: Request) -> Response:
            return await self._answer(request, handler, upload=upload)

        self.router.add_api_route(path, answer, methods=[method], include_in_schema=False, response_model=None)

    async def _answer(self, request: Request, handler: Handler, *, upload: bool) -> Response:
        access = self.parts.access
        known = visit_id_of(request.headers)
        form: Mapping[str, list[str]] = {}
        caller = access.caller(request.headers)
        visit = Visit(request, self.parts, known or new_visit_id(), caller, form)
        if caller is None and not access.is_open(request.url.path):
            response = visit.go(LOGIN, user=None)
        else:
            try:
                if request.method == "POST":
                    form = {} if upload else await _form(request)
                    visit = Visit(request, self.parts, visit.visit_id, caller, form)
                    _check_token(visit)
                response = await handler(visit)
            except (ApiError, LivingKVError) as error:
                response = told(visit, error if isinstance(error, ApiError) else api_error(error))
        if known is None and "set-cookie" not in response.headers and not request.url.path.startswith(STATIC):
            visit.set_cookie(response, visit.visit_id)
        return response


def told(visit: Visit, error: ApiError) -> Response:
    """A page, or a part of one, that says what is wrong."""
    template = "_problem.html" if visit.is_part else "problem.html"
    response = visit.html(template, error.status, message=str(error), code=error.status)
    response.headers.update(error.headers())
    return response


async def _form(request: Request) -> Mapping[str, list[str]]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        raise ApiError(415, f"Content-Type: {_FORM} is needed", code="content_type")
    try:
        text = (await request.body()).decode("ascii")
        return parse_qs(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError as error:
        raise ApiError(400, f"the form cannot be read: UTF-8 and at most {_MOST_FIELDS} fields are allowed") from error


def _check_token(visit: Visit) -> None:
    token = visit.request.headers.get(CSRF_HEADER) or (visit.form.get(CSRF_FIELD) or [""])[0]
    if not visit.parts.access.is_token(visit.visit_id, token):
        raise ApiError(403, "this form is out of date: open the page again, then repeat what you did", code="csrf")
