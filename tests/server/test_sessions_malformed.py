"""Whatever is sent to the routes of jobs and sessions, the answer is 2xx or a clear 4xx, never a fault or a hang."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.serving import Served
from tests.server.test_malformed import VALUES
from tests.server.test_transfers import exported

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROUTES = (
    *(("POST", "/v1/memory/ingest"), ("POST", "/v1/memory/prune"), ("POST", "/v1/memory/reembed"), ("GET", "/v1/jobs")),
    *(("GET", "/v1/jobs/{}"), ("DELETE", "/v1/jobs/{}"), ("POST", "/v1/sessions"), ("GET", "/v1/sessions")),
    *(("GET", "/v1/sessions/{}"), ("DELETE", "/v1/sessions/{}"), ("PATCH", "/v1/sessions/{}")),
    *(("POST", "/v1/sessions/{}/save"), ("POST", "/v1/sessions/{}/restore"), ("POST", "/v1/sessions/{}/fork")),
    *(("GET", "/v1/sessions/{}/export"), ("POST", "/v1/memory/defrag")),
)
FIELDS = (
    *("text", "source", "session", "user", "kv", "keep", "below", "embedder", "name", "encrypt", "pinned"),
    *("dry_run", "cursor", "limit", "decrypt"),
)
NAMES = st.one_of(
    st.text(min_size=1, max_size=8), st.sampled_from(["notes", "*", "..", "a/b", "%", "job-00", "\x00", "x" * 300])
)
BODIES = st.one_of(
    st.dictionaries(st.sampled_from(FIELDS), st.one_of(NAMES, VALUES), max_size=5),
    st.fixed_dictionaries({"name": NAMES, "text": NAMES, "keep": st.just(1), "embedder": NAMES}),
    VALUES,
)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    route=st.sampled_from(ROUTES),
    name=NAMES,
    body=BODIES,
    query=st.dictionaries(st.sampled_from(FIELDS), NAMES, max_size=3),
    is_plain=st.booleans(),
)
def test_no_request_is_a_fault(
    served: Served, route: tuple[str, str], name: str, body: Any, query: dict[str, str], is_plain: bool
) -> None:
    method, path, failed = *route, served.count("failed_total")
    kind = "text/plain" if is_plain and path.endswith("ingest") else "application/json"
    content = json.dumps(body).encode() if method in ("POST", "PATCH") else None
    path = path.format(quote(name, safe=""))
    answer = served.client.request(method, path, params=query, content=content, headers={"Content-Type": kind})
    assert answer.status_code < 500, (method, path, body, query, answer.text)
    if answer.status_code >= 400 and answer.headers["content-type"] == "application/json":
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert "\n" not in answer.json()["error"]["message"]
    assert served.count("failed_total") == failed, "of a job, too"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.floats(0, 1),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=3),
    more=st.binary(max_size=9),
)
def test_no_file_is_a_fault(served: Served, cut: float, changes: list[tuple[float, int]], more: bytes) -> None:
    failed = served.count("failed_total")
    served.client.post("/v1/sessions", json={"name": "empty", "user": served.user})
    data = bytearray(exported(served, "empty"))
    for place, value in changes:
        data[int(place * (len(data) - 1))] = value
    sent = bytes(data[: int(cut * len(data))]) + more
    headers = {"Content-Type": "application/octet-stream"}
    answer = served.client.post("/v1/import", params={"user": served.user}, content=sent, headers=headers)
    assert answer.status_code in (201, 400, 409), answer.text
    assert served.count("failed_total") == failed
