"""Pages of sessions: the list, one session with its timeline, and what can be done to it.

Knows the session routes and how a timeline is drawn; changes nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from livingkv.server.api_errors import ApiError
from livingkv.server.page.inside import Json, given
from livingkv.server.page.rendering import PAGE_HEADERS
from livingkv.server.page.visit import Visit

_PAGE = 50
_WIDTH = 1000.0
_LEAST_WIDTH = 1.5


class Mark(NamedTuple):
    """A part of a timeline as it is drawn: from `x`, `width` wide, of 1000."""

    x: float
    width: float
    role: str
    label: str


def marks(timeline: Sequence[Json]) -> list[Mark]:
    """The parts of a timeline to scale; what is too thin to be seen is as wide as a hair."""
    start = min((part["tokens"][0] for part in timeline), default=0)
    length = max((part["tokens"][1] for part in timeline), default=0) - start
    found = []
    for part in timeline if length else ():
        lo, hi = part["tokens"]
        width = max(_LEAST_WIDTH, (hi - lo) / length * _WIDTH)
        x = min((lo - start) / length * _WIDTH, _WIDTH - width)
        label = f"{part['source'] or part['role']}: tokens {lo:,} to {hi:,}"
        found.append(Mark(round(x, 2), round(width, 2), str(part["role"]), label))
    return found


async def sessions(visit: Visit) -> Response:
    """The list."""
    found = await visit.inside.get("/v1/sessions", given(user=visit.user, cursor=visit.said("cursor"), limit=_PAGE))
    return visit.html("sessions.html", sessions=found["sessions"], next_cursor=found["next_cursor"])


async def session(visit: Visit) -> Response:
    """One session."""
    found = await visit.inside.get(_route(visit), given(user=visit.user))
    timeline = found["timeline"]
    return visit.html("session.html", session=found, timeline=timeline, marks=marks(timeline))


async def act(visit: Visit) -> Response:
    """Restore, check, fork, rename or pin a session."""
    verb, route, name = visit.said("verb"), _route(visit), visit.said("name")
    if verb in ("restore", "save"):
        done = await visit.inside.post(f"{route}/{verb}", given(user=visit.user))
        if verb == "restore":
            visit.parts.samples.restored(visit.tenant, done)
        visit.note("restored" if verb == "restore" else "checked", f"session “{name}”")
        template = "_restored.html" if visit.is_part else "restored.html"
        return visit.html(template, done=done, verb=verb, name=name)
    if verb == "fork":
        made = await visit.inside.post(f"{route}/fork", given(name=visit.said("new_name"), user=visit.user))
    elif verb == "rename":
        made = await visit.inside.patch(route, given(name=visit.said("new_name"), user=visit.user))
    elif verb in ("pin", "unpin"):
        made = await visit.inside.patch(route, {**given(user=visit.user), "pinned": verb == "pin"})
    else:
        raise ApiError(404, "a session cannot do that")
    visit.note({"fork": "forked", "rename": "renamed"}.get(verb, f"{verb}ned"), f"session “{name}”")
    return visit.go("/page/session", name=made["name"])


async def export(visit: Visit) -> Response:
    """A session as a file, as the route sends it."""
    asked: dict[str, Any] = given(user=visit.user)
    asked["kv"] = "true" if visit.said("kv", "true") == "true" else "false"
    if visit.said("decrypt") == "yes":
        asked["decrypt"] = "true"
    reply = await visit.inside.open("GET", f"{_route(visit)}/export", asked)
    named = {name: value for name, value in reply.headers.items() if name in ("content-length", "content-disposition")}
    named.setdefault("content-disposition", f"attachment; filename*=UTF-8''{quote(visit.said('name'))}.lkv-session")
    return StreamingResponse(reply.chunks, media_type="application/octet-stream", headers={**PAGE_HEADERS, **named})


def _route(visit: Visit) -> str:
    name = visit.said("name")
    if not name or "/" in name:
        raise ApiError(404, "there is no such session", code="session_not_found")
    return f"/v1/sessions/{name}"
