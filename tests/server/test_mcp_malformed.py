"""Whatever is sent to /mcp, in the protocol of either era, the answer is a result or a clear refusal, never a fault."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.serving import Served
from tests.server.test_malformed import VALUES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOOLS = ("remember", "recall", "ask", "forget", "sessions", "stats", "\ud800", "")
FIELDS = ("text", "messages", "session", "query", "k", "mode", "max_tokens", "ids", "dry_run", "cursor", "limit", "x")
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALLS = st.fixed_dictionaries(
    {"name": st.sampled_from(TOOLS), "arguments": st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4)}
)
METHODS = st.sampled_from(
    ["tools/call", "tools/list", "ping", "initialize", "server/discover", "subscriptions/listen", "x", "\ud800"]
)
MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0"), "method": st.just("tools/call"), "params": CALLS},
        optional={"id": st.integers(1, 9)},
    ),
    st.fixed_dictionaries(
        {"jsonrpc": st.sampled_from(["2.0", "1.0"]), "method": METHODS, "id": VALUES}, optional={"params": VALUES}
    ),
    VALUES,
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=MESSAGES, modern=st.booleans(), streamed=st.booleans())
def test_no_message_is_a_fault(served: Served, message: Any, modern: bool, streamed: bool) -> None:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if streamed:
        headers["Accept"] += ", text/event-stream"
    if modern and isinstance(message, dict):
        headers |= {"MCP-Protocol-Version": "2026-07-28"} | _named(message)
        if isinstance(message.get("params"), dict):
            message = {**message, "params": {**message["params"], "_meta": META}}
    body = json.dumps(message).encode()
    before = served.count("failed_total")
    with served.client.stream("POST", f"/mcp?user={served.user}", content=body, headers=headers, timeout=10) as answer:
        assert answer.status_code < 500, (message, answer.read())
        if not _goes_on(message):
            answer.read()
    assert served.count("failed_total") == before, message


def _named(message: dict[str, Any]) -> dict[str, str]:
    """The headers that repeat what a message says."""
    method, params = message.get("method"), message.get("params")
    name = params.get("name") if isinstance(params, dict) else None
    found = {"Mcp-Method": method, "Mcp-Name": name}
    return {header: text for header, text in found.items() if isinstance(text, str) and text.isascii() and text}


def _goes_on(message: Any) -> bool:
    """A subscription is a stream without an end."""
    return isinstance(message, dict) and message.get("method") == "subscriptions/listen"
