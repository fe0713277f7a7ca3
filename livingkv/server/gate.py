"""Who is inside of a tenant's memory: many that read or append, or one that changes it at large.

Knows counts; knows nothing of what is done inside. On the inference thread only: waiting is yielding.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager


class Gate:
    """One tenant's gate. Whoever wants to be alone keeps others from coming in."""

    def __init__(self) -> None:
        self._n_inside = 0
        self._is_alone = False
        self._n_wanting = 0

    @property
    def is_free(self) -> bool:
        """Nobody is inside."""
        return not (self._n_inside or self._is_alone)

    @property
    def is_wanted(self) -> bool:
        """Somebody waits to be alone: `step_out` lets them in."""
        return self._n_wanting > 0

    def enter(self, undo: ExitStack, *, alone: bool = False) -> Generator[None, None, None]:
        """Wait until one may come in, and leave when `undo` is unwound."""
        with self._wanting(alone):
            while self._is_alone or (self._n_inside if alone else self._n_wanting):
                yield
        if alone:
            self._is_alone = True
        else:
            self._n_inside += 1
        undo.callback(self._leave, alone)

    @contextmanager
    def _wanting(self, alone: bool) -> Iterator[None]:
        self._n_wanting += alone
        try:
            yield
        finally:
            self._n_wanting -= alone

    def _leave(self, alone: bool) -> None:
        if alone:
            self._is_alone = False
        else:
            self._n_inside -= 1

    def step_out(self) -> Generator[None, None, None]:
        """One of the many lets those in that want to be alone, and comes back."""
        if not self._n_wanting:
            return
        self._n_inside -= 1
        try:
            while self._is_alone or self._n_wanting:
                yield
        finally:
            self._n_inside += 1
