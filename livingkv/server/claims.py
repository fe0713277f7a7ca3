"""Who writes to a session: a name in a tenant's `busy` is claimed, and nobody else may change that session meanwhile.

Knows names and waiting; knows nothing of what is written. On the inference thread only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from livingkv.server.api_errors import RETRY_AFTER_S, ApiError
from livingkv.server.owners import session_of
from livingkv.server.stepwise import pause
from livingkv.server.tenants import Tenant

WAIT_S = 2.0
"""So long a writer waits for another one's turn to end; a job takes longer."""


@contextmanager
def claimed(tenant: Tenant, name: str) -> Iterator[None]:
    """Claim a session for the block, waiting up to WAIT_S for whoever has it. Raises ApiError, 409, after that."""
    deadline = time.monotonic() + WAIT_S
    while name in tenant.busy and time.monotonic() < deadline:
        pause()
    require_free(tenant, [name])
    tenant.busy.add(name)
    try:
        yield
    finally:
        tenant.busy.discard(name)


def require_free(tenant: Tenant, names: Iterable[str]) -> None:
    """Raise ApiError, 409, where somebody writes to one of these sessions."""
    for name in names:
        if name in tenant.busy:
            told = f"session {session_of(name)!r} is being written to: try again, or wait for its job or cancel it"
            raise ApiError(409, told, code="session_busy", retry_after_s=RETRY_AFTER_S)
