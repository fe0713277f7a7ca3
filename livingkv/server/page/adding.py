"""Pages that add: pasted text, files, exported sessions; and the jobs that read them.

Knows the ingest, import and job routes; reads nothing itself.
"""

from __future__ import annotations

import json

from starlette.responses import Response

from livingkv.server.api_errors import ApiError
from livingkv.server.page.inside import Json, given
from livingkv.server.page.visit import Visit

_LONGEST_SHOWN = 20


async def add(visit: Visit) -> Response:
    """The forms."""
    session = visit.said("session")
    return visit.html("add.html", session=session, limit=visit.parts.service.options.max_ingest_bytes)


async def ingest(visit: Visit) -> Response:
    """Take up pasted text."""
    text = (visit.form.get("text") or [""])[0].replace("\r\n", "\n")
    if not text.strip():
        raise ApiError(400, "there is no text", param="text")
    body = given(text=text, source=visit.said("source") or "pasted text", session=visit.said("session"))
    body |= given(user=visit.user) | {"kv": visit.said("kv") != "no"}
    return _begun(visit, await visit.inside.post("/v1/memory/ingest", body))


async def ingest_file(visit: Visit) -> Response:
    """Take up a file, whose text is the request's body."""
    asked = given(source=visit.said("source"), session=visit.said("session"), user=visit.user)
    asked["kv"] = "false" if visit.said("kv") == "no" else "true"
    reply = await visit.inside.open("POST", "/v1/memory/ingest", asked, upload=True)
    return _begun(visit, json.loads(await reply.whole()))


def _begun(visit: Visit, answer: Json) -> Response:
    job = answer["job"]
    visit.note("ingested", f"session “{job['session'] or 'default'}”")
    if visit.is_part:
        return visit.html("_job.html", job=job)
    return visit.go("/page/activity")


async def import_file(visit: Visit) -> Response:
    """Make a session from an exported file, the request's body."""
    asked = given(name=visit.said("name"), user=visit.user)
    reply = await visit.inside.open("POST", "/v1/import", asked, upload=True)
    made = json.loads(await reply.whole())
    visit.note("imported", f"session “{made['name']}”")
    return visit.html("_imported.html", session=made)


async def activity(visit: Visit) -> Response:
    """Jobs, and what was changed from the page."""
    jobs = (await visit.inside.get("/v1/jobs", given(user=visit.user)))["jobs"]
    changes = visit.parts.changes.latest(visit.tenant)
    return visit.html("activity.html", jobs=jobs[:_LONGEST_SHOWN], changes=changes)


async def job(visit: Visit) -> Response:
    """One job, as it stands."""
    return _shown(visit, await visit.inside.get(_job_route(visit), given(user=visit.user)))


async def cancel(visit: Visit) -> Response:
    """Give a job up."""
    return _shown(visit, await visit.inside.delete(_job_route(visit), given(user=visit.user)))


def _job_route(visit: Visit) -> str:
    return f"/v1/jobs/{visit.request.path_params['job_id']}"


def _shown(visit: Visit, found: Json) -> Response:
    return visit.html("_job.html", job=found) if visit.is_part else visit.go("/page/activity")
