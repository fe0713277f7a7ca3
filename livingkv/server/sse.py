"""Server-sent events: chunks as `data:` lines, comments that keep a connection alive while a prompt is read.

Knows the wire format; knows nothing of what a chunk says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


def data(chunk: Any) -> bytes:
    """One chunk."""
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def event(name: str, chunk: Any) -> bytes:
    """One chunk under a name."""
    return f"event: {name}\n".encode() + data(chunk)


async def with_keepalives(
    lines: AsyncIterator[bytes], is_gone: Callable[[], Awaitable[bool]], *, poll_s: float, every_s: float
) -> AsyncIterator[bytes]:
    """The lines, and a comment whenever none came for `every_s`. Ends, and closes `lines`, when it is closed or when
    the client is gone, which is asked every `poll_s` while nothing comes."""
    following: asyncio.Task[bytes] | None = None
    quiet_s = 0.0
    try:
        while True:
            following = following or asyncio.ensure_future(anext(lines))
            done, _ = await asyncio.wait({following}, timeout=poll_s)
            if not done:
                if await is_gone():
                    return
                quiet_s += poll_s
                if quiet_s >= every_s:
                    quiet_s = 0.0
                    yield KEEPALIVE
                continue
            quiet_s = 0.0
            try:
                line = following.result()
            except StopAsyncIteration:
                return
            following = None
            yield line
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait({following})
        close = getattr(lines, "aclose", None)
        if close is not None:
            await close()
