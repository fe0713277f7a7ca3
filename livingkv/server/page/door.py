"""Coming and going: the login form, leaving, the files of the page, and what is not there.

Knows visits; a key is looked up and forgotten here.
"""

from __future__ import annotations

from starlette.responses import Response

from livingkv.server.api_errors import ApiError
from livingkv.server.page.access import LOGIN
from livingkv.server.page.visit import Visit


async def login(visit: Visit) -> Response:
    """Ask for a key; with a good one, the browser gets a new id and goes on."""
    if not visit.parts.access.needs_key:
        return visit.go("/")
    if visit.request.method == "GET":
        return visit.html("login.html", wrong=False)
    entered = visit.parts.access.enter(visit.said("key"))
    if entered is None:
        return visit.html("login.html", 401, wrong=True)
    visit.parts.access.leave(visit.visit_id)
    response = visit.go("/", user=None)
    visit.set_cookie(response, entered)
    return response


async def logout(visit: Visit) -> Response:
    """End the visit."""
    visit.parts.access.leave(visit.visit_id)
    return visit.go(LOGIN, user=None)


async def static(visit: Visit) -> Response:
    """A file of the page."""
    found = visit.parts.rendering.static(visit.request.path_params["name"])
    if found is None:
        raise ApiError(404, "there is no such file")
    return found


async def missing(visit: Visit) -> Response:
    """An address that is none."""
    raise ApiError(404, "there is no such page")
