"""Writing behind reading: what was read becomes durable in a thread of its own while the next text is read.

Knows drafts, a store and their order; knows no text and no model. A bounded number of drafts is under way, so that
memory is bounded; nothing counts as durable before the store has said so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from livingkv.spill import Spill
from livingkv.store import Append

MOST_DRAFTS = 2
"""One is written while the next one waits; with a third the caller waits."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """An append whose KV may still be on its way from the device. spill: None for a text-only session."""

    append: Append
    spill: Spill | None

    def finished(self) -> Append:
        """The whole append; waits for the device."""
        if self.spill is None:
            return self.append
        return replace(self.append, pages=self.spill.pages(), tail=self.spill.tail())


class WriteBehind:
    """Appends drafts in the order given. A context manager: leaving it waits for what was given, whatever happened.

    An error of the store is raised by the next call and by those after it; nothing that was given behind it is written
    or told as durable. On leaving it is raised unless another error is on its way.
    """

    def __init__(self, append: Callable[[Append], object], *, most: int = MOST_DRAFTS) -> None:
        """append: `Store.append`."""
        self._append = append
        self._most = most
        self._error: BaseException | None = None
        self._under_way: deque[tuple[int, Future[None]]] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="livingkv-writing")

    def put(self, draft: Draft, mark: int) -> list[int]:
        """Give a draft on; blocks while too many are under way. Answers the marks that became durable, in order."""
        durable = self.durable()
        while len(self._under_way) >= self._most:
            durable.append(self._settled())
        self._under_way.append((mark, self._pool.submit(self._write, draft)))
        return durable

    def durable(self) -> list[int]:
        """The marks that became durable since they were last told; does not wait."""
        marks = []
        while self._under_way and self._under_way[0][1].done():
            marks.append(self._settled())
        return marks

    def finish(self) -> list[int]:
        """Wait for all drafts; the marks that were not told of yet."""
        return [self._settled() for _ in range(len(self._under_way))]

    def _settled(self) -> int:
        mark, future = self._under_way.popleft()
        future.result()
        return mark

    def _write(self, draft: Draft) -> None:
        if self._error is not None:
            raise self._error
        try:
            self._append(draft.finished())
        except BaseException as error:  # the edge of a thread: raised where it is waited for
            self._error = error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if error is None:
            self.finish()
