"""The calls that begin long work, and those about jobs; contracts as in memory_calls.py."""

from __future__ import annotations

from typing import Any

from livingkv.client.answers import Job
from livingkv.client.call import Call, segment
from livingkv.client.parsing import each, parsed


def ingest(
    text: str,
    *,
    source: str,
    session: str = "default",
    kv: bool = True,
    user: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Job]:
    """Begin to read a text into a session; `wait` for the job. source: what the text is called. kv: False stores the
    text and its index only, which is fast."""
    body = {"text": text, "source": source, "session": session, "kv": kv}
    return _begin("ingest", body, user, idempotency_key)


def prune(
    *,
    keep: int | None = None,
    below: float | None = None,
    session: str | None = None,
    user: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Job]:
    """Begin to archive all but the `keep` heaviest sentences, or those that weigh less than `below`."""
    return _begin("prune", {"keep": keep, "below": below, "session": session}, user, idempotency_key)


def reembed(embedder: str, *, idempotency_key: str | None = None) -> Call[Job]:
    """Begin to index the whole store with another embedder."""
    return _begin("reembed", {"embedder": embedder}, None, idempotency_key, has_user=False)


def defrag(*, idempotency_key: str | None = None) -> Call[Job]:
    """Begin to rewrite the store without what was forgotten."""
    return _begin("defrag", {}, None, idempotency_key, has_user=False)


def jobs(*, user: str | None = None) -> Call[tuple[Job, ...]]:
    """The jobs, the newest first."""
    return Call("GET", "/v1/jobs", lambda told: each(Job, told, "jobs"), user=user)


def job(job: Job | str, *, user: str | None = None) -> Call[Job]:
    """How far a job is; one that is given by its id is looked for among those of `user`."""
    return Call("GET", f"/v1/jobs/{segment(_id_of(job))}", _job_of, user=_user_of(job, user))


def cancel(job: Job | str, *, user: str | None = None) -> Call[Job]:
    """End a job before its next step; what it did until then stays."""
    return Call("DELETE", f"/v1/jobs/{segment(_id_of(job))}", _job_of, user=_user_of(job, user))


def _begin(
    kind: str, body: dict[str, Any], user: str | None, idempotency_key: str | None, has_user: bool = True
) -> Call[Job]:
    return Call(
        "POST",
        f"/v1/memory/{kind}",
        _job_of,
        body=body,
        user=user,
        has_user=has_user,
        stores=True,
        idempotency_key=idempotency_key,
    )


def _job_of(told: Any) -> Job:
    inside = told.get("job") if isinstance(told, dict) else None
    return parsed(Job, inside if isinstance(inside, dict) else told, "job")


def _id_of(job: Job | str) -> str:
    return job if isinstance(job, str) else job.id


def _user_of(job: Job | str, user: str | None) -> str | None:
    """Jobs about a whole store are nobody's, whoever began them."""
    return user if user is not None or isinstance(job, str) else job.user or ""
