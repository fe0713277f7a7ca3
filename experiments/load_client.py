"""One client of a load: chats, whole and streamed, goes away in the middle, stores, searches and asks.

Knows the routes of docs/API.md; notes everything in a tally. A session belongs to one client, so that it knows what was
acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any

import httpx

from experiments.load_tally import Tally

CHAT, TURN, SEARCH, ASK = "/v1/chat/completions", "/v1/memory/turn", "/v1/memory/search", "/v1/memory/ask"
LIST, SESSIONS = "/v1/memory", "/v1/sessions"
_WEIGHTS = {"whole": 6, "streamed": 6, "left stream": 2, "left whole": 1, "turn": 3, "search": 3, "extract": 2, "kv": 1}
_WEIGHTS |= {"list": 1, "sessions": 1}
_NEEDS = {"turn": TURN, "search": SEARCH, "extract": ASK, "kv": ASK, "list": LIST, "sessions": SESSIONS}
_MOST_TURNS = 12
"""Of one session; then the next is begun."""
_REPLY_TOKENS = 12
_WAIT_S = 0.25
"""Before a client that was asked to wait comes back: sooner than it was asked to, to keep the pressure up."""


def actions(paths: Sequence[str]) -> tuple[str, ...]:
    """What a client can do with these routes."""
    return tuple(action for action in _WEIGHTS if _NEEDS.get(action, CHAT) in paths)


class LoadClient:
    """Does one thing after the other. words: what it says, taken from in turn."""

    def __init__(
        self, client: httpx.AsyncClient, tally: Tally, words: Sequence[str], name: str, seed: int, can: Sequence[str]
    ) -> None:
        self._client = client
        self._tally = tally
        self._words = words
        self._name = name
        self._random = random.Random(f"{seed} {name}")
        self._can = can
        self._n_sessions = 0
        self._session = name
        self._said: list[str] = []
        self._went_away = False  # since the last answer, so that the session may hold a turn that was not heard of
        self._doing: dict[str, Callable[[], Awaitable[bool]]] = {
            "whole": self._whole,
            "streamed": self._streamed,
            "left stream": self._left_stream,
            "left whole": self._left_whole,
            "turn": self._turn,
            "search": lambda: self._post(SEARCH, {"query": self._some(), "k": 5}),
            "extract": lambda: self._post(ASK, {"query": self._some(), "mode": "extract"}),
            "kv": lambda: self._post(ASK, {"query": self._some(), "mode": "kv", "max_tokens": _REPLY_TOKENS}),
            "list": lambda: self._get(LIST),
            "sessions": lambda: self._get(SESSIONS),
        }

    async def run_until(self, deadline_s: float) -> None:
        """Go on until the clock (perf_counter) says so."""
        while perf_counter() < deadline_s:
            action = self._random.choices(self._can, [_WEIGHTS[each] for each in self._can])[0]
            try:
                if not await self._doing[action]():
                    await asyncio.sleep(_WAIT_S)
            except httpx.TransportError as error:
                self._tally.fault(f"{action}: {type(error).__name__} {error}")
                await asyncio.sleep(_WAIT_S)

    def _some(self) -> str:
        return self._random.choice(self._words)

    def _next_turn(self) -> dict[str, Any]:
        if len(self._said) >= 2 * _MOST_TURNS:
            self._n_sessions += 1
            self._session, self._said, self._went_away = f"{self._name}-{self._n_sessions}", [], False
        texts = [*self._said, self._some()]
        messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
        return {"messages": messages, "session": self._session, "max_tokens": _REPLY_TOKENS, "temperature": 0}

    def _acknowledged(self, body: dict[str, Any], reply: str, usage: dict[str, Any]) -> None:
        self._tally.turn(usage, self._session, len(self._said), goes_another_way=self._went_away)
        self._went_away = False
        self._said += [body["messages"][-1]["content"], reply]

    async def _post(self, path: str, body: dict[str, Any], what: str = "") -> bool:
        started = perf_counter()
        answer = await self._client.post(path, json=body)
        return self._noted(what or f"POST {path}", answer, started)

    async def _get(self, path: str) -> bool:
        started = perf_counter()
        return self._noted(f"GET {path}", await self._client.get(path, params={"limit": 20}), started)

    def _noted(self, what: str, answer: httpx.Response, started: float) -> bool:
        took = 1000 * (perf_counter() - started)
        return self._tally.answered(what, answer.status_code, answer.headers.get("retry-after"), took, answer.text)

    async def _turn(self) -> bool:
        body = {"session": f"{self._name} notes", "query": self._some(), "mode": "extract"}
        messages = [{"role": "user", "content": self._some()}, {"role": "assistant", "content": self._some()}]
        return await self._post(TURN, body | {"messages": messages})

    async def _whole(self) -> bool:
        body, started = self._next_turn(), perf_counter()
        answer = await self._client.post(CHAT, json=body)
        if not self._noted("chat, whole", answer, started):
            return False
        told = answer.json()
        self._acknowledged(body, told["choices"][0]["message"]["content"], told["usage"])
        return True

    async def _streamed(self) -> bool:
        body, started = self._next_turn(), perf_counter()
        more = {"stream": True, "stream_options": {"include_usage": True}}
        async with self._client.stream("POST", CHAT, json=body | more) as answer:
            text = (await answer.aread()).decode()
        if not self._noted("chat, streamed", answer, started):
            return False
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        if not lines or lines[-1] != "[DONE]":
            self._tally.fault(f"chat, streamed, ended with {lines[-1:]}")
            return False
        chunks = [json.loads(line) for line in lines[:-1]]
        reply = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        self._acknowledged(body, reply, next(chunk["usage"] for chunk in chunks if chunk.get("usage")))
        return True

    async def _left_stream(self) -> bool:
        """Hear some chunks of a long reply, and go."""
        body, n_heard, started = (
            self._next_turn() | {"stream": True, "max_tokens": 400},
            self._random.randrange(8),
            perf_counter(),
        )
        async with self._client.stream("POST", CHAT, json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return self._noted("chat, left while streamed", answer, started)
            async for line in answer.aiter_lines():
                n_heard -= line.startswith("data: ")
                if n_heard < 0:
                    break
        self._tally.gave_up("chat, left while streamed")
        self._went_away = True
        return True

    async def _left_whole(self) -> bool:
        """Wait a little for a long reply, and go. What came in time was acknowledged."""
        body, started = self._next_turn() | {"max_tokens": 400}, perf_counter()
        try:
            async with asyncio.timeout(self._random.uniform(0.01, 0.6)):
                answer = await self._client.post(CHAT, json=body)
        except TimeoutError:
            self._tally.gave_up("chat, left before it was answered")
            self._went_away = True
            return True
        if self._noted("chat, left before it was answered", answer, started):
            told = answer.json()
            self._acknowledged(body, told["choices"][0]["message"]["content"], told["usage"])
            return True
        return False
