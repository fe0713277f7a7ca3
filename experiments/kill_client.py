"""A client that outlives the service: it talks, stores and ingests until the service is killed, and knows what was
acknowledged. The oracle outside of the store.

Knows the routes of docs/API.md; each of its sessions is its own. Every text is said once and is like no other, so that
a doubled one is seen.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

CHAT, TURN, INGEST = "/v1/chat/completions", "/v1/memory/turn", "/v1/memory/ingest"
_MAY_WAIT = (429, 503)


@dataclass(slots=True)
class Acknowledged:
    """What the service said is stored. chats: by session, user and assistant in turn; turns: by session; ingested: by
    session, source and text; jobs: by id. unheard: what is stored and whose answer the kill took: route, key and
    body."""

    chats: dict[str, list[str]] = field(default_factory=dict)
    turns: dict[str, list[str]] = field(default_factory=dict)
    ingested: dict[str, list[str]] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    unheard: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    @property
    def n(self) -> int:
        """How much in all."""
        chats = sum(len(texts) // 2 for texts in self.chats.values())
        return chats + sum(len(texts) for part in (self.turns, self.ingested) for texts in part.values())


@dataclass(slots=True)
class Restarted:
    """First turns of sessions after a restart: how many tokens of them were cached."""

    cached_tokens: list[int] = field(default_factory=list)
    without: list[str] = field(default_factory=list)


class KillClient:
    """Works on its own sessions, one request after the other. name: like no other client's."""

    def __init__(self, name: str, n_sessions: int, seed: int) -> None:
        self.acknowledged = Acknowledged(chats={f"{name} chat {n}": [] for n in range(n_sessions)})
        self.restarted = Restarted()
        self.faults: list[str] = []
        self.n_cut = 0
        self._name = name
        self._random = random.Random(f"{seed} {name}")
        self._n = 0
        self._fresh: set[str] = set()
        self._unsure: set[str] = set()

    def work_until_killed(self, url: str, paths: frozenset[str]) -> None:
        """Go on until the service is gone."""
        self._fresh = {name for name, texts in self.acknowledged.chats.items() if texts}
        with httpx.Client(base_url=url, timeout=60) as client:
            try:
                while True:
                    choice = self._random.random()
                    if choice < 0.2 and TURN in paths:
                        self._turn(client)
                    elif choice < 0.3 and INGEST in paths:
                        self._ingest(client)
                    else:
                        self._chat(client)
            except httpx.TransportError:
                self.n_cut += 1

    def say_again(self, url: str) -> None:
        """The turns and texts whose answer a kill took, once more under their own keys: they are stored once, whatever
        the first request came to."""
        waiting, self.acknowledged.unheard = self.acknowledged.unheard, []
        with httpx.Client(base_url=url, timeout=60) as client:
            for path, key, body in waiting:
                self._store(client, path, key, body)

    def _text(self, what: str) -> str:
        self._n += 1
        return f"{self._name} says {what} number {self._n} with {uuid4().hex}."

    def _chat(self, client: httpx.Client) -> None:
        session = self._random.choice(sorted(self.acknowledged.chats))
        said, text = self.acknowledged.chats[session], self._text("turn")
        messages = [{"role": ("user", "assistant")[n % 2], "content": each} for n, each in enumerate([*said, text])]
        body = {
            "messages": messages,
            "session": session,
            "max_tokens": self._random.choice((2, 4, 24)),
            "temperature": 0,
        }
        was_sure = session not in self._unsure
        self._unsure.add(session)
        answer = client.post(CHAT, json=body)
        if not self._is_answered(answer, CHAT):
            return
        self._unsure.discard(session)
        told = answer.json()
        cached = int(told["usage"]["prompt_tokens_details"]["cached_tokens"])
        if session in self._fresh:
            self._fresh.discard(session)
            self.restarted.cached_tokens.append(cached)
            if not cached and was_sure:
                self.restarted.without.append(f"{session}: {len(said)} messages before")
        said += [text, told["choices"][0]["message"]["content"]]

    def _turn(self, client: httpx.Client) -> None:
        messages = [
            {"role": "user", "content": self._text("note")},
            {"role": "assistant", "content": self._text("reply")},
        ]
        body = {"session": f"{self._name} notes", "messages": messages, "query": "What was said?", "mode": "extract"}
        self._store(client, TURN, uuid4().hex, body)

    def _store(self, client: httpx.Client, path: str, key: str, body: dict[str, Any]) -> None:
        try:
            answer = client.post(path, json=body, headers={"Idempotency-Key": key})
        except httpx.TransportError:
            self.acknowledged.unheard.append((path, key, body))
            raise
        if path == TURN and self._is_answered(answer, TURN):
            stored = self.acknowledged.turns.setdefault(body["session"], [])
            stored += [message["content"] for message in body["messages"]]
        elif path == INGEST and self._is_answered(answer, INGEST, 202):
            self.acknowledged.ingested.setdefault(body["session"], []).append(body["text"])
            self.acknowledged.jobs.append(str(answer.json()["job"]["id"]))

    def _ingest(self, client: httpx.Client) -> None:
        text = " ".join(self._text("sentence") for _ in range(self._random.choice((1, 20, 80))))
        body = {"text": text, "source": f"{self._name} {self._n}", "session": f"{self._name} files"}
        self._store(client, INGEST, uuid4().hex, body)

    def _is_answered(self, answer: httpx.Response, what: str, success: int = 200) -> bool:
        if answer.status_code not in (success, *_MAY_WAIT):
            self.faults.append(f"{what} was answered {answer.status_code}: {answer.text[:200]}")
        return answer.status_code == success
