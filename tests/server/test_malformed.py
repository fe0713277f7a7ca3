"""Whatever is sent, the answer is 200 or a clear 4xx, never a fault and never a hang."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.serving import CHAT, Served, talk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["user", "tool", "assistant", "system", "text", "function", "<|im_end|>", "\ud800", "\ufdd0", "a/b"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["role", "content", "name", "type", "x"]), inner)
    ),
    max_leaves=6,
)
FIELDS = (
    *("messages", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p"),
    *("top_k", "seed", "stop", "n", "logprobs", "top_logprobs", "tools", "tool_choice", "response_format", "user"),
    *("session", "memory", "store", "logit_bias", "presence_penalty", "prompt", "echo", "suffix", "input"),
    *("dimensions", "encoding_format", "best_of"),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer"]), "content": VALUES},
        optional={"tool_calls": VALUES, "name": VALUES, "tool_call_id": VALUES, "reasoning_content": VALUES},
    ),
    min_size=1,
    max_size=4,
)
BODIES = st.one_of(
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5),
    st.fixed_dictionaries({"messages": MESSAGES}),
    VALUES,
)
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": talk("Hi."), "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi.", "max_tokens": 2},
    "/v1/embeddings": {"input": "Hi."},
}


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(sorted(VALID)), body=BODIES, over=st.booleans())
def test_no_body_is_a_fault(served: Served, path: str, body: Any, over: bool) -> None:
    if over and isinstance(body, dict):
        body = {**VALID[path], **body}
    content = json.dumps(body).encode()
    answer = served.client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, (body, answer.text)
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    elif "data: " in answer.text:
        assert '"error"' not in answer.text
