"""What the inference thread tells a request, in order: it began, text came, it is done; or it failed.

Knows values only; nothing of the model, and of HTTP only the ApiError that a request failed with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from livingkv.server.api_errors import ApiError
from livingkv.server.token_texts import TokenText
from livingkv.server.tool_calls import ToolCall

Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token with its natural log-probability, and the likeliest ones at its place."""

    token: TokenText
    logprob: float
    likeliest: tuple[tuple[TokenText, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Began:
    """The prompt is read from the store as far as it is there. n_attended: stored tokens that the rest attends."""

    n_prompt: int
    n_cached: int
    n_attended: int
    session: str | None


@dataclass(frozen=True, slots=True)
class Wrote:
    """Text that became certain, with the tokens since the last one."""

    text: str
    tokens: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The reply is whole, and durable if it has a session."""

    finish: Finish
    n_prompt: int
    n_cached: int
    n_generated: int
    n_prefilled: int
    session: str | None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing more comes, and nothing was stored. `error` is what the client is told."""

    error: ApiError


Event = Began | Wrote | Done | Failed
Emit = Callable[[Event], None]
