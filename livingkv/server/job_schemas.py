"""The bodies of requests for jobs, checked, and jobs as they are told.

Knows fields and ranges; knows no store.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from livingkv.server.jobs import Job
from livingkv.server.owners import session_of
from livingkv.server.schemas import Lenient, Number, Text, Whole

DEFAULT_SESSION, DEFAULT_SOURCE = "default", "text"


class IngestOptions(Lenient):
    """What goes with a text."""

    source: Annotated[Text, Field(min_length=1)] = DEFAULT_SOURCE
    session: Text = DEFAULT_SESSION
    user: Text | None = None
    kv: bool = True


class IngestBody(IngestOptions):
    """A text as JSON."""

    text: Text


class PruneBody(Lenient):
    """keep: so many of the warmest sentences stay; below: those of less weight go."""

    keep: Annotated[Whole, Field(ge=0, lt=1 << 62)] | None = None
    below: Annotated[Number, Field(ge=0)] | None = None
    session: Text | None = None
    user: Text | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.keep is None) == (self.below is None):
            raise ValueError("one of keep and below is needed")
        return self


class ReembedBody(Lenient):
    """embedder: as in the settings of a memory."""

    embedder: Annotated[Text, Field(min_length=1, max_length=1024)]


def job_json(job: Job) -> dict[str, Any]:
    """A job as clients see it."""
    return {
        "id": job.job_id,
        "kind": job.kind,
        "state": job.state,
        "user": job.user or None,
        "session": None if job.session is None else session_of(job.session),
        "source": job.source,
        "done": job.done,
        "total": job.total,
        "unit": job.unit,
        "created_s": job.created_s,
        "ended_s": job.ended_s,
        "result": job.result,
        "error": job.error,
    }
