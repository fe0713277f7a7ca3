"""A service that is not there: answers to give, and what was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from livingkv.client import AsyncClient, Client, Retries

HIT = {
    "id": "7",
    "session": "default",
    "user": "",
    "text": "The code is 4471.",
    "source": "notes",
    "role": "document",
    "positions": [3, 9],
    "score": 0.5,
    "lexical": 1,
    "semantic": None,
    "lexical_rank": 1,
    "semantic_rank": None,
    "coverage": 0.5,
    "a field of a later version": [],
}
ASKED = {
    "answer": "4471",
    "mode": "extract",
    "reason": "one sentence says it",
    "confident": True,
    "confidence": 0.9,
    "evidence": [HIT],
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 1,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
    "timings_ms": {"probe": 1},
}
JOB = {
    "id": "j1",
    "kind": "ingest",
    "state": "running",
    "session": "s",
    "source": "t",
    "done": 1,
    "total": 3,
    "unit": "bytes",
    "created_s": 1.5,
    "ended_s": None,
    "result": None,
    "error": None,
}
Answer = httpx.Response | Exception


@dataclass
class Answering:
    """Gives the answers in order, the last one again and again; keeps the requests."""

    answers: list[Answer]
    asked: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def transport(self) -> httpx.MockTransport:
        """For a client, sync or async."""
        return httpx.MockTransport(self)


def refused(status: int, message: str = "no", **headers: str) -> httpx.Response:
    """An error in the service's envelope."""
    told = {"error": {"message": message, "type": "x", "param": "query", "code": "why"}}
    return httpx.Response(status, json=told, headers={name.replace("_", "-"): text for name, text in headers.items()})


def client_of(*answers: Any, **options: Any) -> tuple[Client, Answering]:
    """A client that gets these answers: errors, responses, or values that are sent as JSON."""
    service = Answering([_answer(one) for one in answers])
    return Client("http://there", transport=service.transport, **{"retries": Retries(2, 0.0), **options}), service


def async_client_of(*answers: Any, **options: Any) -> tuple[AsyncClient, Answering]:
    """The same, awaited."""
    service = Answering([_answer(one) for one in answers])
    return AsyncClient("http://there", transport=service.transport, **{"retries": Retries(2, 0.0), **options}), service


def _answer(one: Any) -> Answer:
    return one if isinstance(one, (httpx.Response, Exception)) else httpx.Response(200, json=one)


def no_sleep(waits: list[float]) -> Callable[[float], None]:
    """A sleep that only notes for how long."""
    return waits.append
