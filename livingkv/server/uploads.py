"""What a request's body may be, by its path: which media type, how long, read as a whole or passed on as it comes.

Knows paths, sizes and ASGI messages; knows no route's body.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from livingkv.server import receiving
from livingkv.server.options import ServerOptions
from livingkv.server.receiving import too_large

INGEST_PATH, IMPORT_PATH = "/v1/memory/ingest", "/v1/import"
PAGE, PAGE_LOGIN_PATH = "/page/", "/page/login"
PAGE_INGEST_PATH, PAGE_IMPORT_PATH = "/page/ingest/file", "/page/import"
JSON, PLAIN, BINARY = "application/json", "text/plain", "application/octet-stream"
FORM = "application/x-www-form-urlencoded"
_LONGEST_LOGIN = 4096
"""Of anybody, so that it is small."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A body that may be. is_streamed: it is passed on as it comes, and only counted."""

    kinds: tuple[str, ...]
    max_bytes: int
    is_streamed: bool = False


def upload_of(path: str, options: ServerOptions) -> Upload:
    """What a body sent to this path may be."""
    longest_text = min(options.max_ingest_bytes, options.max_upload_bytes)
    if path == INGEST_PATH:
        return Upload((JSON, PLAIN), longest_text)
    if path == PAGE_INGEST_PATH:
        return Upload((PLAIN,), longest_text)
    if path in (IMPORT_PATH, PAGE_IMPORT_PATH):
        return Upload((BINARY,), options.max_import_bytes, is_streamed=True)
    if path == PAGE_LOGIN_PATH:
        return Upload((FORM,), _LONGEST_LOGIN)
    return Upload((FORM if path.startswith(PAGE) else JSON,), options.max_body_bytes)


def counted(headers: Headers, receive: Receive, limit: int) -> Receive:
    """The same messages, as long as their bodies are within the limit and come as fast as any body has to
    (receiving.py); the time that the receiver takes does not count. Raises ApiError where the body says that it is
    longer, else to whoever receives what is too long or too late."""
    said = headers.get("content-length", "0")
    if said.isdecimal() and int(said) > limit:
        raise too_large(limit)
    n_bytes, n_counted, waited_s = 0, 0, 0.0
    is_open = True  # what comes after the body, the disconnect, may take as long as it likes

    async def next_message() -> Message:
        nonlocal n_bytes, n_counted, waited_s, is_open
        started = monotonic()
        try:
            async with asyncio.timeout(receiving.PATIENCE_S - waited_s if is_open else None):
                message = await receive()
        except TimeoutError as error:
            raise receiving.too_slow() from error
        n_bytes, waited_s = n_bytes + len(message.get("body", b"")), waited_s + monotonic() - started
        is_open = is_open and bool(message.get("more_body", False))
        if n_bytes > limit:
            raise too_large(limit)
        if n_bytes - n_counted >= receiving.LEAST_BYTES:
            n_counted, waited_s = n_bytes, 0.0
        return message

    return next_message
