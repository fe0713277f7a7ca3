"""Pages that look: search with the reason of every hit, the list of sentences, one sentence among its neighbours.

Knows what the routes answer; changes nothing.
"""

from __future__ import annotations

from starlette.responses import Response

from livingkv.server.page.inside import Json, given
from livingkv.server.page.visit import Visit

ROLES = ("document", "user", "assistant")
_MOST_HITS = 100
_PAGE = 50


async def home(visit: Visit) -> Response:
    """The search box, with what it found, or with what there is."""
    query = visit.said("q")
    filters = {name: visit.said(name) for name in ("session", "source", "role")}
    k = visit.whole_said("k", 10, 1, _MOST_HITS)
    hits: Json | None = None
    if query:
        asked = given(query=query, user=visit.user, k=k, **filters)
        hits = await visit.inside.post("/v1/memory/search", asked)
    found = {"query": query, "filters": filters, "k": k, "hits": [] if hits is None else hits["hits"], "roles": ROLES}
    stats, recent = None, None
    if not query:
        stats = await visit.inside.get("/v1/stats")
        recent = await visit.inside.get("/v1/sessions", given(user=visit.user, limit=_PAGE))
    return visit.html("home.html", **found, stats=stats, recent=[] if recent is None else recent["sessions"][:6])


async def memories(visit: Visit) -> Response:
    """All sentences in their order, a page at a time."""
    filters = {name: visit.said(name) for name in ("session", "source", "role")}
    asked = given(user=visit.user, cursor=visit.said("cursor"), limit=_PAGE, **filters)
    found = await visit.inside.get("/v1/memory", asked)
    return visit.html(
        "memories.html", filters=filters, sentences=found["sentences"], next_cursor=found["next_cursor"], roles=ROLES
    )


async def memory(visit: Visit) -> Response:
    """One sentence: where it stands, how warm it is, what stands around it."""
    sentence_id = visit.request.path_params["sentence_id"]
    found = await visit.inside.get(f"/v1/memory/{sentence_id}", given(user=visit.user))
    return visit.html("memory.html", sentence=found)


async def edit(visit: Visit) -> Response:
    """Put another text in the place of a sentence, and show that."""
    sentence_id = visit.request.path_params["sentence_id"]
    body = given(text=visit.said("text"), user=visit.user)
    found = await visit.inside.patch(f"/v1/memory/{sentence_id}", body)
    visit.note("edited", f"sentence {sentence_id}, now {found['id']}")
    return visit.go(f"/page/memory/{found['id']}")
