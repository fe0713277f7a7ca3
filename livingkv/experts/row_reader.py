"""Rows of tables, read from files: many small reads in flight at once.

Rows that share blocks of a file, or lie in blocks side by side, are one read. Each thread has one read in flight and a
buffer of its own, from which rows are copied to where they are wanted. Knows places and open files; refuses to know
what rows are for.
"""

from __future__ import annotations

import mmap
import queue
import threading
from collections import deque
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from livingkv.errors import ExpertReadError, InputError
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.layout import BLOCK_BYTES, rounded
from livingkv.experts.one_process import OneProcess
from livingkv.experts.row_table import Ids, RowColumn, Rows, RowTable

N_THREADS = 32
_LONGEST_READ = 1 << 16


class _Group(NamedTuple):
    """One read: bytes `[lo, hi)` of a file, whole blocks from `lo` on. Row `slots[i]` begins at `starts[i]` of them."""

    file: int
    lo: int
    hi: int
    starts: Ids
    slots: Ids
    target: Rows


class RowRead:
    """Rows on their way."""

    def __init__(self, groups: deque[_Group]) -> None:
        self._groups = groups
        self._n_left = len(groups)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: Exception | None = None
        if not groups:
            self._done.set()

    def wait(self) -> None:
        """Return when all rows are there, or raise what went wrong. After that nothing is written any more."""
        self._done.wait()
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Return when nothing is written any more, whatever became of it."""
        self._done.wait()

    def next_group(self) -> _Group | None:
        """A read that no thread has yet."""
        try:
            return self._groups.popleft()
        except IndexError:
            return None

    def completed(self, error: Exception | None) -> None:
        """One read is over."""
        with self._lock:
            self._error = self._error or error
            self._n_left -= 1
            if self._n_left == 0:
                self._done.set()


class RowReader:
    """Reads rows of the tables of one checkpoint; closes its files in the end."""

    def __init__(self, files: CheckpointFiles, tables: tuple[RowTable, ...], n_threads: int = N_THREADS) -> None:
        if n_threads < 1:
            raise InputError("n_threads", n_threads, "at least 1 is needed")
        self._files = files
        longest = max(column.row_bytes for table in tables for column in table.columns)
        self._buffer_bytes = _LONGEST_READ + rounded(longest, BLOCK_BYTES) + BLOCK_BYTES
        self._waiting: queue.SimpleQueue[RowRead | None] = queue.SimpleQueue()
        self._closed = False
        self._process = OneProcess()
        buffers = [memoryview(mmap.mmap(-1, self._buffer_bytes)) for _ in range(n_threads)]  # here, where it can fail
        self._threads = [
            threading.Thread(target=self._work, args=(buffer,), name=f"livingkv-rows-{number}", daemon=True)
            for number, buffer in enumerate(buffers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def buffer_bytes(self) -> int:
        """Memory of the threads' buffers."""
        return len(self._threads) * self._buffer_bytes

    def begin(self, table: RowTable, ids: Ids, rows: Rows, slots: Ids) -> RowRead:
        """Begin to read rows `ids`, ascending and each once, to `rows[slots]`. Does not wait. ModelError in a process
        that was forked since."""
        self._process.require()
        if self._closed:
            raise ExpertReadError("the model is closed", path=table.name, offset=0)
        groups: deque[_Group] = deque()
        at = 0
        for column in table.columns:
            groups += _groups(column, ids, rows[:, at : at + column.row_bytes], slots)
            at += column.row_bytes
        read = RowRead(groups)
        for _ in range(min(len(groups), len(self._threads))):
            self._waiting.put(read)
        return read

    def close(self) -> None:
        """Wait for reads under way and close the files. Once is enough, twice is fine."""
        self._closed = True
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._files.close()

    def _work(self, buffer: memoryview) -> None:
        while (read := self._waiting.get()) is not None:
            while (group := read.next_group()) is not None:
                error: Exception | None = None
                try:
                    self._fill(group, buffer)
                except Exception as lost:  # the edge of the thread: whoever waits for the rows gets it
                    error = lost
                read.completed(error)

    def _fill(self, group: _Group, buffer: memoryview) -> None:
        n_needed = group.hi - group.lo
        self._files.read(group.file, buffer[: rounded(n_needed, BLOCK_BYTES)], group.lo, n_needed)
        n_bytes = group.target.shape[1]
        if len(group.slots) == 1:
            start = int(group.starts[0])
            group.target[group.slots[0]] = np.frombuffer(buffer, np.uint8, n_bytes, start)
            return
        found = np.frombuffer(buffer, np.uint8)
        group.target[group.slots] = found[group.starts[:, None] + np.arange(n_bytes)]


def _groups(column: RowColumn, ids: Ids, target: Rows, slots: Ids) -> list[_Group]:
    """Reads for those rows, in the order of files and offsets."""
    if not ids.size:
        return []
    files, offsets = column.places(ids)
    order = np.lexsort((offsets, files))
    files, offsets, slots = files[order], offsets[order], slots[order]
    lows = offsets // BLOCK_BYTES * BLOCK_BYTES
    highs = -(-(offsets + column.row_bytes) // BLOCK_BYTES) * BLOCK_BYTES
    begins = np.ones(len(ids), bool)
    begins[1:] = (files[1:] != files[:-1]) | (lows[1:] > highs[:-1])
    runs = np.cumsum(begins) - 1
    pieces = (lows - lows[begins][runs]) // _LONGEST_READ
    begins[1:] |= pieces[1:] != pieces[:-1]
    bounds = [*np.flatnonzero(begins).tolist(), len(ids)]
    return [
        _Group(
            int(files[first]),
            int(lows[first]),
            int(offsets[end - 1]) + column.row_bytes,
            offsets[first:end] - lows[first],
            slots[first:end],
            target,
        )
        for first, end in pairwise(bounds)
    ]
