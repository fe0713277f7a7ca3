"""One asker over HTTP: streamed chat completions, each timed from the request to its first text and to its end.

Knows the route of docs/API.md; knows nothing of what is measured with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import httpx

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Asked:
    """Clock times (perf_counter) of one reply, and its tokens."""

    sent_s: float
    first_s: float
    last_s: float
    n_tokens: int

    @property
    def first_ms(self) -> float:
        """From the request to the first text."""
        return 1000 * (self.first_s - self.sent_s)


async def ask(client: httpx.AsyncClient, text: str, *, user: str, session: str, max_tokens: int) -> Asked:
    """A greedy reply to one message, in a conversation of its own. Raises RuntimeError for anything but a reply."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "user": user, "session": session}
    body |= {"max_tokens": max_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    sent, first, n_tokens = perf_counter(), None, None
    async with client.stream("POST", CHAT, json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{CHAT} answered {answer.status_code}: {(await answer.aread())[:300]!r}")
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise RuntimeError(f"{CHAT}: {chunk['error']['message']}")
            if chunk.get("usage"):
                n_tokens = int(chunk["usage"]["completion_tokens"])
            if first is None and any(choice["delta"].get("content") for choice in chunk["choices"]):
                first = perf_counter()
    last = perf_counter()
    if n_tokens is None:
        raise RuntimeError(f"{CHAT}: a stream without an end")
    return Asked(sent, last if first is None else first, last, n_tokens)
