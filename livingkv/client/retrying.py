"""When a call is sent again: while the service says that it is busy, a few times, later and later.

Knows statuses and seconds; sleeps nowhere itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from livingkv.client.errors import ApiError, Busy


@dataclass(frozen=True, slots=True)
class Retries:
    """limit: how often a call is sent again at most. first_s: the wait before the first time, doubled for each further
    one, up to most_s. What the service names in Retry-After comes first; where that is longer than most_s, the caller
    is told instead."""

    limit: int = 4
    first_s: float = 0.25
    most_s: float = 20.0

    def wait_s(self, error: ApiError, n_sent: int) -> float | None:
        """How long to wait before the next try, after `n_sent`; None to give up."""
        if not isinstance(error, Busy) or n_sent > self.limit:
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self.most_s else None
        longest = min(self.most_s, self.first_s * 2.0 ** (n_sent - 1))
        return longest * random.uniform(0.5, 1)  # clients that were refused together come back apart
