"""Streamed experts belong to the process that loaded them: a fork copies their memory, and leaves their threads behind.

Rows are shared memory, so that what a forked process read into them would be in the other one's rows as well; and its
OpenMP threads, which torch computes with, are gone as the readers are: it would wait for ever. Knows process ids.
"""

from __future__ import annotations

import os

from livingkv.errors import ModelError

_IMPORTED_IN = os.getpid()
"""A process with another id was forked from one that may have computed."""

_ADVICE = "start it as a new process (spawn) and load the model there"


class OneProcess:
    """The process that made it."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether the caller is in it."""
        return os.getpid() == self._pid

    def require(self) -> None:
        """Raise ModelError in a process that was forked from it."""
        if os.getpid() != self._pid:
            raise ModelError(f"the model was loaded before this process was forked: {_ADVICE}")


def require_not_forked() -> None:
    """Raise ModelError in a process that was forked since this was imported."""
    if os.getpid() != _IMPORTED_IN:
        raise ModelError(
            f"this process was forked from one with livingkv in it, and has none of its threads: {_ADVICE}"
        )
