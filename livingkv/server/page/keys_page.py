"""The page of keys: those of the visitor's tenant; an administrator adds and revokes them.

Knows the keys file through its module; a new key is shown once, in the answer that made it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.responses import Response

from livingkv.server.api_errors import ApiError
from livingkv.server.keys import SCOPES, ApiKey, make_key, read_keys, revoke_key
from livingkv.server.page.visit import Visit


async def keys(visit: Visit) -> Response:
    """The list."""
    return await _listed(visit)


async def add_key(visit: Visit) -> Response:
    """Make a key of this tenant."""
    path, scope = _changeable(visit), visit.said("scope")
    name = visit.said("key_name")
    made = await asyncio.to_thread(make_key, path, visit.tenant, name, [scope])
    visit.note("added a key", f"{name or 'without a name'} ({scope})")
    return await _listed(visit, made=made, status=201)


async def revoke(visit: Visit) -> Response:
    """Take a key of this tenant back: asked for first, done when confirmed."""
    path, key_id = _changeable(visit), visit.said("key_id")
    found = next((key for key in await _of_tenant(visit, path) if key.key_id == key_id), None)
    if found is None:
        raise ApiError(404, "there is no such key")
    if found == _own(visit):
        raise ApiError(409, "this is the key that you came with: come with another one to revoke it")
    if visit.said("confirm") != "yes":
        return await _listed(visit, asked=found)
    await asyncio.to_thread(revoke_key, path, key_id)
    visit.note("revoked a key", found.name or found.key_id)
    return visit.go("/page/keys")


async def _listed(visit: Visit, *, made: str = "", asked: ApiKey | None = None, status: int = 200) -> Response:
    path, own = visit.parts.service.options.keys_file, _own(visit)
    shown = [] if own is None or path is None else [own]
    if path is not None and visit.allows("admin"):
        shown = await _of_tenant(visit, path)
    return visit.html("keys.html", status, keys=shown, own=own, made=made, asked=asked, scopes=SCOPES)


def _own(visit: Visit) -> ApiKey | None:
    return None if visit.caller is None else visit.caller.key


def _changeable(visit: Visit) -> Path:
    assert visit.caller is not None, "this page is not open"
    visit.caller.require("admin")
    path = visit.parts.service.options.keys_file
    if path is None:
        raise ApiError(404, "the service was started without keys")
    return path


async def _of_tenant(visit: Visit, path: Path) -> list[ApiKey]:
    return [key for key in await asyncio.to_thread(read_keys, path) if key.tenant == visit.tenant]
