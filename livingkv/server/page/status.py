"""The state of the store: sizes, tiers over time, the model.

Knows the stats route and how it is shown; counts nothing itself.
"""

from __future__ import annotations

import time

from starlette.responses import JSONResponse, Response

from livingkv.server.page.inside import Json
from livingkv.server.page.rendering import PAGE_HEADERS
from livingkv.server.page.samples import Sample
from livingkv.server.page.visit import Visit


async def status(visit: Visit) -> Response:
    """The page."""
    stats = await _sampled(visit)
    template = "_tiles.html" if visit.is_part else "status.html"
    return visit.html(template, stats=stats)


async def series(visit: Visit) -> Response:
    """The plots' numbers, with a sample of now."""
    await _sampled(visit)
    return JSONResponse(visit.parts.samples.columns(visit.tenant), headers=dict(PAGE_HEADERS))


async def _sampled(visit: Visit) -> Json:
    stats = await visit.inside.get("/v1/stats")
    tiers = stats.get("tiers") or {}
    visit.parts.samples.add(
        visit.tenant,
        Sample(
            when_s=time.time(),
            device_bytes=int(stats["device_bytes"]),
            ram_bytes=int(tiers.get("ram_bytes", 0)),
            disk_bytes=int(stats["bytes"]),
            n_hits=int(tiers.get("n_hits", 0)),
            n_misses=int(tiers.get("n_misses", 0)),
        ),
    )
    return stats


async def defrag(visit: Visit) -> Response:
    """Begin to give the space of erased records back."""
    answer = await visit.inside.post("/v1/memory/defrag")
    visit.note("began to defragment", "the store")
    return visit.html("_job.html", job=answer["job"]) if visit.is_part else visit.go("/page/activity")
