"""One writer at a time for each session: a name in a tenant's `busy` is claimed.

Knows names and waiting; knows nothing of what is written. On the inference thread, in steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from livingkv.server.stepwise import pause
from livingkv.server.tenants import Tenant


@contextmanager
def claimed(tenant: Tenant, name: str) -> Iterator[None]:
    """Claim a session for the block, once no turn has it. Raises ApiError, 409, where a job has it or takes it."""
    tenant.require_free(name)
    while name in tenant.busy:
        pause()
        tenant.require_free(name)
    tenant.busy.add(name)
    try:
        yield
    finally:
        tenant.busy.discard(name)
