"""A Python client of the service: `Client` blocks, `AsyncClient` is awaited.

Importing it loads httpx, and neither torch nor any other part of livingkv. For chat completions and embeddings use the
openai package: the service speaks OpenAI's API.
"""

from __future__ import annotations

from livingkv.client.answers import (
    AskResult,
    Counts,
    ForgottenBytes,
    Hit,
    Job,
    Receipt,
    Restored,
    Saved,
    Sentence,
    Session,
    Source,
    Stats,
    Stretch,
    TurnResult,
    Usage,
)
from livingkv.client.async_client import AsyncAskStream, AsyncClient
from livingkv.client.errors import (
    ApiError,
    BadRequest,
    Busy,
    ClientError,
    Conflict,
    JobFailed,
    JobUnfinished,
    NoConnection,
    NotAllowed,
    NotFound,
    ServiceFailed,
    StorageFull,
    TimedOut,
    UnexpectedAnswer,
)
from livingkv.client.retrying import Retries
from livingkv.client.sync_client import AskStream, Client

__all__ = [
    "ApiError",
    "AskResult",
    "AskStream",
    "AsyncAskStream",
    "AsyncClient",
    "BadRequest",
    "Busy",
    "Client",
    "ClientError",
    "Conflict",
    "Counts",
    "ForgottenBytes",
    "Hit",
    "Job",
    "JobFailed",
    "JobUnfinished",
    "NoConnection",
    "NotAllowed",
    "NotFound",
    "Receipt",
    "Restored",
    "Retries",
    "Saved",
    "Sentence",
    "ServiceFailed",
    "Session",
    "Source",
    "Stats",
    "StorageFull",
    "Stretch",
    "TimedOut",
    "TurnResult",
    "UnexpectedAnswer",
    "Usage",
]
