"""Whatever is sent to whichever route, the answer is a success or a clear 4xx, never a fault and never a hang."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from livingkv.server.app import create_app
from livingkv.server.options import ServerOptions
from livingkv.server.service import Service
from tests.server.openapi_requests import Request, requests_of
from tests.server.serving import Served, serving, talk, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DOCUMENT = create_app(Service(ServerOptions(Path("nowhere")), tiny_model())).openapi()
FIXED = {
    "max_tokens": st.sampled_from([1, 2, 0, -1, None, "2", 1.5]),
    "max_completion_tokens": st.sampled_from([1, 2, 0, None]),
    "embedder": st.sampled_from(["tokens", "states", "", 7, None]),  # any other name would be looked for on the network
}
REQUESTS = requests_of(DOCUMENT, FIXED)
FINE = (200, 201, 202, 204)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that may lose everything; something is stored in it."""
    with serving(tmp_path_factory.mktemp("malformed") / "stores") as served:
        served.chat("Hello there", session="default")
        yield served


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=REQUESTS)
def test_no_request_is_a_fault(own: Served, request: Request) -> None:
    headers = {} if request.body is None else {"Content-Type": "application/json"}
    content = None if request.body is None else json.dumps(request.body).encode()
    answer = own.client.request(
        request.method, request.path, params=request.query, content=content, headers=headers, timeout=30
    )
    route = f"{request.method} {request.path.partition('?')[0]} {answer.status_code}"
    assert answer.status_code in FINE or 400 <= answer.status_code < 500, (request, answer.text)
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, route


def test_and_it_serves_still(own: Served) -> None:
    answer: httpx.Response = own.post({"messages": talk("Are you there?")})
    assert answer.status_code == 200 and own.count("failed_total") == 0
