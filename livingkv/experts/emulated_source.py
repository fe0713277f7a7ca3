"""A source that is as slow as it is told to be.

For tests and for planning: it tells what a slower drive would do, not what a faster one would. Knows sources; refuses
to know files.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter, sleep

from livingkv.errors import ExpertReadError
from livingkv.experts.index import ExpertIndex
from livingkv.experts.keys import ExpertKey
from livingkv.experts.one_process import OneProcess
from livingkv.experts.source import Source, SourceCounts

_SLICE_BYTES = 1 << 20


@dataclass(eq=False)
class _Job:
    """One expert that the emulated drive has yet to deliver. inner: its real read, once the drive has turned to it."""

    key: ExpertKey
    row: memoryview
    n_left: int
    asked_at: float
    given: Future[None] = field(default_factory=Future)
    inner: Future[None] | None = None


class EmulatedSource:
    """A Source as slow as a drive of `bytes_per_s` with `latency_s`: what `inner` has read is held back until then.

    The drive serves one expert after the other. A read ahead makes way for a needed one after each MiB.
    """

    def __init__(self, inner: Source, index: ExpertIndex, bytes_per_s: float, latency_s: float = 0.0) -> None:
        self._inner = inner
        self._index = index
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._free_at = 0.0
        self._needed: deque[_Job] = deque()
        self._ahead: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._process = OneProcess()
        self._sent: queue.SimpleQueue[tuple[_Job, float] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name="livingkv-emulated", daemon=True)
            for work in (self._drive, self._deliver)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def buffer_bytes(self) -> int:
        """See Source."""
        return self._inner.buffer_bytes

    def read(self, key: ExpertKey, row: memoryview, *, ahead: bool = False) -> Future[None]:
        """See Source."""
        self._process.require()
        n_bytes = sum(run.block_hi - run.block_lo for run in self._index.placement(key).runs)
        job = _Job(key, row, n_bytes, perf_counter())
        with self._changed:
            if self._closed:
                return self._inner.read(key, row)  # which fails
            (self._ahead if ahead else self._needed).append(job)
            self._changed.notify()
        return job.given

    def need(self, future: Future[None]) -> None:
        """See Source."""
        with self._changed:
            job = next((job for job in self._ahead if job.given is future), None)
            if job is not None:
                self._ahead.remove(job)
                self._needed.append(job)

    def give_up(self, future: Future[None]) -> bool:
        """See Source."""
        with self._changed:
            job = next((job for job in self._ahead if job.given is future and job.inner is None), None)
            if job is None:
                return False
            self._ahead.remove(job)
        run = self._index.placement(job.key).runs[0]
        path = str(self._index.checkpoint.files[run.file].path)
        future.set_exception(ExpertReadError("it was not wanted any more", path=path, offset=run.lo))
        return True

    def counts(self) -> SourceCounts:
        """See Source."""
        return self._inner.counts()

    def close(self) -> None:
        """See Source."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        for thread in self._threads:
            thread.join()
        self._inner.close()

    def _drive(self) -> None:
        while (turn := self._turn()) is not None:
            job, queued = turn
            n_bytes = min(job.n_left, _SLICE_BYTES)
            self._free_at = max(job.asked_at, self._free_at) + n_bytes / self._bytes_per_s
            sleep(max(0.0, self._free_at - perf_counter()))
            with self._changed:
                job.n_left -= n_bytes
                if not job.n_left:
                    (queued if job in queued else self._needed).remove(job)
                    self._sent.put((job, self._free_at + self._latency_s))
        self._sent.put(None)

    def _turn(self) -> tuple[_Job, deque[_Job]] | None:
        with self._changed:
            while not self._needed and not self._ahead and not self._closed:
                self._changed.wait()
            queued = self._needed or self._ahead
            if not queued:
                return None
            if queued[0].inner is None:
                queued[0].inner = self._inner.read(queued[0].key, queued[0].row)
            return queued[0], queued

    def _deliver(self) -> None:
        while (item := self._sent.get()) is not None:
            job, due = item
            assert job.inner is not None
            error = job.inner.exception()
            sleep(max(0.0, due - perf_counter()))
            if error is None:
                job.given.set_result(None)
            else:
                job.given.set_exception(error)
