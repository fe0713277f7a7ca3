"""Forgetting from the page: first what would go, counted; then, confirmed, the receipt of what is gone.

Knows the forget route; erases nothing itself.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from livingkv.server.api_errors import ApiError
from livingkv.server.page.inside import given
from livingkv.server.page.visit import Visit


async def forget(visit: Visit) -> Response:
    """Count what a form names; where the form confirms, forget it."""
    named = given(
        ids=visit.all_said("ids"),
        session=visit.said("session"),
        source=visit.said("source"),
        everything=visit.said("everything") == "yes" or None,
    )
    if not named:
        raise ApiError(400, "nothing is selected")
    body: dict[str, Any] = named | given(user=visit.user, deep=visit.said("deep") == "yes" or None)
    if visit.said("confirm") != "yes":
        counted = await visit.inside.post("/v1/memory/forget", body | {"dry_run": True})
        template = "_forget.html" if visit.is_part else "forget.html"
        return visit.html(template, named=named, what=_what(named), counts=counted["counts"])
    receipt = (await visit.inside.post("/v1/memory/forget", body))["receipt"]
    visit.note("forgotten", _what(named), receipt)
    template = "_receipt.html" if visit.is_part else "receipt.html"
    response = visit.html(template, what=_what(named), receipt=receipt)
    response.headers["HX-Trigger"] = json.dumps({"erased": {"ids": named.get("ids", [])}})
    return response


def _what(named: dict[str, Any]) -> str:
    if "ids" in named:
        n = len(named["ids"])
        return "one sentence" if n == 1 else f"{n} sentences"
    if "everything" in named:
        return "everything"
    of = f"session “{named['session']}”"
    return f"source “{named['source']}” of {of}" if "source" in named else of
