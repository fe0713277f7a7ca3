"""What was changed from the page since the service started: receipts without content, the newest first.

Knows counts and times; knows no text. Nothing here is durable.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST = 200
_MOST_TENANTS = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what was done to what, by whom, and the service's receipt of it."""

    what: str
    of: str
    by: str
    receipt: Mapping[str, Any] | None = None
    when_s: float = field(default_factory=time.time)


class Changes:
    """The latest changes of each tenant. Used on the event loop only."""

    def __init__(self) -> None:
        self._of: dict[str, deque[Change]] = {}

    def add(self, tenant: str, change: Change) -> None:
        """Note a change; the oldest is forgotten where there are many."""
        if tenant not in self._of and len(self._of) >= _MOST_TENANTS:
            self._of.pop(next(iter(self._of)))
        self._of.setdefault(tenant, deque(maxlen=_MOST)).appendleft(change)

    def latest(self, tenant: str) -> list[Change]:
        """Those of a tenant, the newest first."""
        return list(self._of.get(tenant, ()))
