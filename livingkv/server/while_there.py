"""Work that is given up when the client that waits for it goes away.

Knows requests and tasks; knows nothing of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from livingkv.server.api_errors import ApiError

POLL_S = 0.2
"""How often it is asked whether the client is still there, while nothing is sent to it."""

T = TypeVar("T")


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns. It is cancelled when the client goes away, or whoever awaits this is cancelled; ended on
    return. Raises ApiError."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=POLL_S))[0]:
            if await request.is_disconnected():
                raise ApiError(499, "the client went away")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
