"""What one request, one tenant and one key may take.

Knows numbers; knows no route. Raises ApiError, which names what was asked for and what is allowed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from livingkv.server.api_errors import ApiError
from livingkv.server.options import ServerOptions
from livingkv.server.tenants import Tenant

_TOKEN_BYTES = 4
_REMEMBERED = 1024
"""So many names are kept before those that count no more are dropped."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Limits of a turn. context_tokens: prompt and reply together."""

    context_tokens: int
    max_sessions: int
    max_tenant_bytes: int | None

    @classmethod
    def of(cls, options: ServerOptions, native_context: int) -> TurnLimits:
        """Those of a service whose model was trained for so many tokens."""
        return cls(options.context_tokens or native_context, options.max_sessions, options.max_tenant_bytes)

    def check_prompt(self, n_tokens: int) -> None:
        """Raise ApiError where a prompt that begins with so many tokens, and goes on, leaves no room for a reply."""
        if n_tokens >= self.context_tokens:
            raise _too_long(f"more than {n_tokens}", self.context_tokens)

    def check_input(self, n_tokens: int) -> None:
        """Raise ApiError where a text of so many tokens, or more, is too long to be embedded."""
        if n_tokens > self.context_tokens:
            told = f"a text has {n_tokens} tokens or more, and {self.context_tokens} are allowed"
            raise ApiError(400, told, param="input", code="context_length_exceeded")

    def room_for_reply(self, n_prompt: int, max_tokens: int) -> int:
        """How long the reply may be. Raises ApiError where the prompt leaves no room."""
        room = self.context_tokens - n_prompt
        if room < 1:
            raise _too_long(str(n_prompt), self.context_tokens)
        return min(room, max_tokens)

    def check_sessions(self, tenant: Tenant) -> None:
        """Raise ApiError where the tenant may not have one more session."""
        n_sessions = tenant.home.store().n_sessions if tenant.home.has_store else 0
        if n_sessions >= self.max_sessions:
            raise ApiError(507, f"{self.max_sessions} sessions are stored: forget some", code="too_many_sessions")

    def check_bytes(self, tenant: Tenant, n_more: int = 0) -> None:
        """Raise ApiError where the tenant may not store more, or not `n_more` bytes."""
        if self.max_tenant_bytes is not None:
            size = tenant.home.store().size_bytes if tenant.home.has_store else 0
            if size + n_more >= self.max_tenant_bytes:
                allowed = f"{size} bytes are stored and {self.max_tenant_bytes} are allowed: forget some sessions"
                raise ApiError(507, allowed, code="tenant_full")


def tokens_at_least(n_bytes: int) -> int:
    """About how few tokens a text of so many bytes has: plain English has a token in four bytes, most else more."""
    return n_bytes // _TOKEN_BYTES


def _too_long(n_tokens: str, allowed: int) -> ApiError:
    told = f"the prompt has {n_tokens} tokens, and prompt and reply together may have {allowed}"
    return ApiError(400, told, param="messages", code="context_length_exceeded")


class Rate:
    """So many requests a minute for each name, evenly; as many at once. Not thread-safe."""

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._now = now
        self._spent: dict[str, tuple[float, float]] = {}  # requests that count still, and when that was so
        self._next_look = _REMEMBERED

    def __len__(self) -> int:
        return len(self._spent)

    def take(self, name: str) -> None:
        """Count a request. Raises ApiError where it is one too many."""
        now, per_s = self._now(), self._per_minute / 60
        spent, when = self._spent.get(name, (0.0, now))
        spent = max(0.0, spent - (now - when) * per_s)
        if spent + 1 > self._per_minute:
            wait = int((spent + 1 - self._per_minute) / per_s) + 1
            told = f"{self._per_minute} requests a minute are allowed: try again"
            raise ApiError(429, told, code="rate_limit_exceeded", retry_after_s=wait)
        self._spent[name] = (spent + 1, now)
        if len(self._spent) > self._next_look:
            self._spent = {name: each for name, each in self._spent.items() if each[0] > (now - each[1]) * per_s}
            self._next_look = max(_REMEMBERED, 2 * len(self._spent))
