"""A call as a value: what is sent, and how its answer is read. No input, no output.

Knows HTTP as text and JSON; knows no HTTP library, so that the sync and the async client share all of it.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

from livingkv.client.errors import ApiError, UnexpectedAnswer, error_of
from livingkv.client.parsing import decoded

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """read: the answer's JSON to what the caller gets. user: None for the client's own. has_user: the route knows
    users. upload: a file that is the body. stores: it changes the store, so it is sent with an Idempotency-Key."""

    method: str
    path: str
    read: Callable[[Any], T]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    user: str | None = None
    has_user: bool = True
    upload: Path | None = None
    stores: bool = False
    idempotency_key: str | None = None

    def bound(self, user: str | None) -> Self:
        """The call for a client's user, with a key of its own where it stores: repeated, it keeps that key."""
        key = self.idempotency_key or (f"livingkv-{uuid.uuid4().hex}" if self.stores else None)
        return replace(self, user=self.user if self.user is not None else user, idempotency_key=key)

    def at(self, cursor: str) -> Self:
        """The same list from a cursor on."""
        return replace(self, query={**self.query, "cursor": cursor})

    def params(self) -> dict[str, str]:
        """The query as text."""
        named = {**self.query, "user": self.user} if self.has_user and self.body is None else self.query
        return {name: _as_text(value) for name, value in named.items() if value is not None}

    def content(self) -> bytes | None:
        """The body as JSON, None where there is none."""
        if self.body is None:
            return None
        named = {**self.body, "user": self.user} if self.has_user else self.body
        return json.dumps({name: value for name, value in named.items() if value is not None}).encode()

    def headers(self) -> dict[str, str]:
        """Headers of this call."""
        named = {} if self.idempotency_key is None else {"Idempotency-Key": self.idempotency_key}
        if self.upload is not None:
            return named | {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(self.upload.stat().st_size),
            }
        return named | ({} if self.body is None else {"Content-Type": "application/json"})


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def answer_of(call: Call[T], status: int, headers: Mapping[str, str], body: bytes) -> T:
    """What the caller gets. Raises ApiError or UnexpectedAnswer."""
    check(status, headers, body)
    return call.read(decoded(body) if body else None)


def check(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raise the ApiError that an answer is, or UnexpectedAnswer where it is a redirection."""
    if status >= 400:
        raise _refusal(status, headers, body)
    if status >= 300:
        raise UnexpectedAnswer(f"the service answered with a redirection ({status}), which is not followed")


def _refusal(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    try:
        told: Any = decoded(body)
    except UnexpectedAnswer:
        told = None
    return refusal(status, told, _seconds(headers.get("retry-after")))


def refusal(status: int, told: Any, retry_after_s: float | None = None) -> ApiError:
    """The error that an envelope tells, as far as it is one."""
    inside = told.get("error") if isinstance(told, dict) else None
    known: Mapping[str, Any] = inside if isinstance(inside, dict) else {}
    message = known.get("message")
    code, param = (known.get(name) if isinstance(known.get(name), str) else None for name in ("code", "param"))
    return error_of(status, str(message) if message else f"the service answered {status}", code, param, retry_after_s)


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds; a date is not what this service sends, and is not understood."""
    try:
        found = float(header) if header is not None else None
    except ValueError:
        return None
    return found if found is not None and math.isfinite(found) and found >= 0 else None


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
