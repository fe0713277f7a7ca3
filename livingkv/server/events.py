"""What the inference thread tells a request, in order: it began, text came, it is done; or it failed.

Knows values only; nothing of the model, and of HTTP only the ApiError that a request failed with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from livingkv.server.api_errors import ApiError
from livingkv.server.recollection import Recollection
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
    """The reply is whole, and durable if it has a session. recollection: what memory said; None where there is none to
    ask."""

    finish: Finish
    n_prompt: int
    n_cached: int
    n_generated: int
    n_prefilled: int
    session: str | None
    calls: tuple[ToolCall, ...] = ()
    recollection: Recollection | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing more comes, and nothing was stored. `error` is what the client is told."""

    error: ApiError


Event = Began | Wrote | Done | Failed


class FirstText:
    """Tells once how many seconds it took from now until the first text of a reply, or its end if that was one."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell
        self._started = perf_counter()
        self._is_told = False

    def note(self, event: Event) -> None:
        """The next event."""
        is_text = isinstance(event, Wrote) or (isinstance(event, Done) and event.n_generated > 0)
        if is_text and not self._is_told:
            self._is_told = True
            self._tell(perf_counter() - self._started)


Emit = Callable[[Event], None]
