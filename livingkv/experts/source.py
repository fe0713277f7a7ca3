"""Where the bytes of an expert come from: the protocol, its counts, and a source that is as slow as it is told to be.

Knows keys and rows of bytes; refuses to know tensors.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Protocol

from livingkv.experts.index import ExpertIndex
from livingkv.experts.keys import ExpertKey


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Reads so far. n_bytes: with padding. seconds: of all reads, those side by side added up."""

    n_experts: int = 0
    n_reads: int = 0
    n_bytes: int = 0
    seconds: float = 0.0


class Source(Protocol):
    """Reads experts into rows of memory."""

    @property
    def buffer_bytes(self) -> int:
        """Memory that the source itself takes."""

    def read(self, key: ExpertKey, row: memoryview) -> Future[None]:
        """Begin to read an expert into its row; reads are served in the order of the calls. Does not wait.

        The row begins at a memory page and belongs to the source until the future is done: with None when every byte
        is there, or with ExpertReadError. Nothing is written after that.
        """

    def counts(self) -> SourceCounts:
        """What was read so far."""

    def close(self) -> None:
        """Wait for what is being read, and give everything back. A later `read` fails."""


class EmulatedSource:
    """A Source as slow as a drive of `bytes_per_s` with `latency_s`: what `inner` has read is held back until then.

    For tests and for planning: it tells what a slower drive would do, not what a faster one would.
    """

    def __init__(self, inner: Source, index: ExpertIndex, bytes_per_s: float, latency_s: float = 0.0) -> None:
        self._inner = inner
        self._index = index
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._free_at = 0.0
        self._waiting: queue.SimpleQueue[tuple[Future[None], Future[None], float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, name="livingkv-emulated", daemon=True)
        self._thread.start()

    @property
    def buffer_bytes(self) -> int:
        """See Source."""
        return self._inner.buffer_bytes

    def read(self, key: ExpertKey, row: memoryview) -> Future[None]:
        """See Source. The emulated drive serves one expert after the other."""
        n_bytes = sum(run.block_hi - run.block_lo for run in self._index.placement(key).runs)
        now = perf_counter()
        self._free_at = max(now, self._free_at) + n_bytes / self._bytes_per_s
        given: Future[None] = Future()
        self._waiting.put((self._inner.read(key, row), given, self._free_at + self._latency_s))
        return given

    def counts(self) -> SourceCounts:
        """See Source."""
        return self._inner.counts()

    def close(self) -> None:
        """See Source."""
        self._waiting.put(None)
        self._thread.join()
        self._inner.close()

    def _deliver(self) -> None:
        while (item := self._waiting.get()) is not None:
            inner, given, due = item
            error = inner.exception()
            sleep(max(0.0, due - perf_counter()))
            if error is None:
                given.set_result(None)
            else:
                given.set_exception(error)
