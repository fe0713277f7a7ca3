"""Where the service is, as whom to ask it, and what sync and async sending have in common.

Knows the environment, httpx's errors and requests; sends nothing itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from livingkv.client.call import Call
from livingkv.client.errors import ClientError, NoConnection, TimedOut

DEFAULT_URL = "http://127.0.0.1:8345"
CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Connection:
    """url: without a path; one that ends in /v1, as OpenAI's package has it, is understood."""

    url: str
    api_key: str | None = field(repr=False)
    user: str | None

    @classmethod
    def of(cls, url: str | None, api_key: str | None, user: str | None) -> Connection:
        """From arguments, else from LIVINGKV_URL and LIVINGKV_API_KEY, else a service on this machine without keys.
        Raises ClientError for what can be neither."""
        where = (url or os.environ.get("LIVINGKV_URL") or DEFAULT_URL).strip().rstrip("/").removesuffix("/v1")
        key = (api_key or os.environ.get("LIVINGKV_API_KEY") or "").strip()
        try:
            is_one = httpx.URL(where).scheme in ("http", "https") and bool(httpx.URL(where).host)
        except httpx.InvalidURL:
            is_one = False
        if not is_one:
            raise ClientError(f"url: {where!r} is none; one such as {DEFAULT_URL} is needed")
        if not (key.isascii() and key.isprintable()):
            raise ClientError("api_key: a key of `livingkv keys add` is needed, lkv_ and signs of ASCII")
        return cls(where, key or None, user)

    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        named = {"Accept": "application/json", "User-Agent": "livingkv-client"}
        return named if self.api_key is None else {**named, "Authorization": f"Bearer {self.api_key}"}


def arguments(call: Call[Any]) -> dict[str, Any]:
    """What httpx builds the request of a bound call from, but for an upload's content."""
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params(),
        "content": call.content(),
        "headers": call.headers(),
    }


@contextmanager
def told_plainly(call: Call[Any]) -> Iterator[None]:
    """Turn what httpx raises inside the block into this package's errors."""
    try:
        yield
    except httpx.TimeoutException as error:
        told = f"{call.method} {call.path}: no answer in time"
        raise TimedOut(told, idempotency_key=call.idempotency_key) from error
    except httpx.ConnectError as error:
        where = str(error.request.url.copy_with(path="/", query=None)).rstrip("/")
        told = (
            f"{call.method} {call.path}: nobody answers at {where}: start `livingkv serve` there, or name another URL"
        )
        raise NoConnection(told, idempotency_key=call.idempotency_key) from error
    except httpx.RequestError as error:
        told = f"{call.method} {call.path}: {type(error).__name__}: {error}".splitlines()[0]
        raise NoConnection(told, idempotency_key=call.idempotency_key) from error


def part_of(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(path.name + ".part")
