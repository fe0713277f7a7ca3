"""The source that reads files: pieces of experts, in the order of their use, by a pool of threads.

Knows placements and open files; refuses to know what is done with an expert. Each thread has one piece in flight, so
the number of threads bounds what is asked of the drive. Reads ahead begin a piece only while nothing that is needed is
queued or being read. Where a run of blocks may lie in its row as it is in the file it is read there; else into the
thread's own buffer, and the parts are copied to their places while they are in cache.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from concurrent.futures import Future
from time import perf_counter
from typing import NamedTuple

import numpy as np

from livingkv.errors import ExpertReadError, InputError
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.index import ExpertIndex
from livingkv.experts.keys import ExpertKey
from livingkv.experts.layout import BLOCK_BYTES, Run
from livingkv.experts.one_process import OneProcess
from livingkv.experts.source import SourceCounts

N_THREADS = 8
PIECE_BYTES = 1 << 20


class _Read:
    """One expert on its way. The pieces share it; whoever finishes the last of them completes the future."""

    def __init__(self, key: ExpertKey, row: memoryview, n_pieces: int, *, ahead: bool) -> None:
        self.key, self.row = key, row
        self.future: Future[None] = Future()
        self.error: Exception | None = None
        self.n_pieces = self.n_left = n_pieces
        self.n_reading = 0
        self.ahead = ahead


class _Piece(NamedTuple):
    """Whole blocks `[lo, hi)` of a run."""

    read: _Read
    run: Run
    lo: int
    hi: int


class PreadSource:
    """A Source over open files, which it closes in the end. piece_bytes is a multiple of a block."""

    def __init__(
        self, index: ExpertIndex, files: CheckpointFiles, n_threads: int = N_THREADS, piece_bytes: int = PIECE_BYTES
    ) -> None:
        if n_threads < 1:
            raise InputError("n_threads", n_threads, "at least 1 is needed")
        if piece_bytes < BLOCK_BYTES or piece_bytes % BLOCK_BYTES:
            raise InputError("piece_bytes", piece_bytes, f"multiples of {BLOCK_BYTES} are allowed")
        self._index = index
        self._files = files
        self._piece_bytes = piece_bytes
        self._pieces: deque[_Piece] = deque()
        self._ahead: deque[_Piece] = deque()
        self._reads_ahead: dict[Future[None], _Read] = {}
        self._n_needed = 0  # pieces of needed reads that are being read
        self._changed = threading.Condition()
        self._closed = False
        self._counts = SourceCounts()
        self._process = OneProcess()
        # made here, where it can fail, and not closed: an error's traceback may hold parts of it
        buffers = [memoryview(mmap.mmap(-1, piece_bytes)) for _ in range(n_threads)]
        self._threads = [
            threading.Thread(target=self._work, args=(buffer,), name=f"livingkv-experts-{number}", daemon=True)
            for number, buffer in enumerate(buffers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def buffer_bytes(self) -> int:
        """See Source: a piece for each thread."""
        return len(self._threads) * self._piece_bytes

    def read(self, key: ExpertKey, row: memoryview, *, ahead: bool = False) -> Future[None]:
        """See Source."""
        self._process.require()
        runs = self._index.placement(key).runs
        spans = [
            (run, lo, min(lo + self._piece_bytes, run.block_hi))
            for run in runs
            for lo in range(run.block_lo, run.block_hi, self._piece_bytes)
        ]
        read = _Read(key, row, len(spans), ahead=ahead)
        with self._changed:
            if self._closed:
                path = str(self._index.checkpoint.files[runs[0].file].path)
                raise ExpertReadError("the model is closed", path=path, offset=runs[0].lo)
            (self._ahead if ahead else self._pieces).extend(_Piece(read, *span) for span in spans)
            if ahead:
                self._reads_ahead[read.future] = read
            self._changed.notify(len(spans))
        return read.future

    def need(self, future: Future[None]) -> None:
        """See Source."""
        with self._changed:
            self._needed_now(future)

    def give_up(self, future: Future[None]) -> bool:
        """See Source."""
        with self._changed:
            read = self._reads_ahead.get(future)
            if read is None or read.n_reading or read.n_left < read.n_pieces:
                return False
            del self._reads_ahead[future]
            run = self._take_out(read)[0].run
        path = str(self._index.checkpoint.files[run.file].path)
        future.set_exception(ExpertReadError("it was not wanted any more", path=path, offset=run.lo))
        return True

    def counts(self) -> SourceCounts:
        """See Source."""
        return self._counts

    def close(self) -> None:
        """See Source."""
        with self._changed:
            self._closed = True
            for future in list(self._reads_ahead):
                self._needed_now(future)  # what was begun is finished
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._files.close()

    def _work(self, buffer: memoryview) -> None:
        while (piece := self._next()) is not None:
            self._serve(piece, buffer)

    def _next(self) -> _Piece | None:
        with self._changed:
            while True:
                if self._pieces:
                    piece = self._pieces.popleft()
                    self._n_needed += 1
                elif self._ahead and not self._n_needed:
                    piece = self._ahead.popleft()
                elif self._closed:
                    return None
                else:
                    self._changed.wait()
                    continue
                piece.read.n_reading += 1
                return piece

    def _needed_now(self, future: Future[None]) -> None:
        read = self._reads_ahead.pop(future, None)
        if read is not None:
            read.ahead = False
            self._n_needed += read.n_reading
            self._pieces.extend(self._take_out(read))
            self._changed.notify_all()

    def _take_out(self, read: _Read) -> list[_Piece]:
        """The pieces of a read ahead that were not begun. They are in no queue then."""
        found = [piece for piece in self._ahead if piece.read is read]
        self._ahead = deque(piece for piece in self._ahead if piece.read is not read)
        return found

    def _finished(self, read: _Read) -> None:
        """A piece of that read is over."""
        read.n_reading -= 1
        read.n_left -= 1
        if read.ahead:
            if not read.n_left:
                del self._reads_ahead[read.future]
            return
        self._n_needed -= 1
        if not self._n_needed and self._ahead:
            self._changed.notify(len(self._ahead))

    def _serve(self, piece: _Piece, buffer: memoryview) -> None:
        read, started = piece.read, perf_counter()
        error: Exception | None = None
        if read.error is None:  # else the rest of a lost expert is not worth reading
            try:
                self._fill(piece, buffer)
            except Exception as lost:  # the edge of the thread: whoever waits for the expert gets it
                error = lost
        with self._changed:
            read.error = read.error or error
            self._finished(read)
            is_last = read.n_left == 0
            old, n_bytes, seconds = self._counts, piece.hi - piece.lo, perf_counter() - started
            self._counts = SourceCounts(
                old.n_experts + is_last, old.n_reads + 1, old.n_bytes + n_bytes, old.seconds + seconds
            )
        if is_last:
            self._complete(read)

    def _complete(self, read: _Read) -> None:
        error = read.error
        if error is None:
            try:
                self._index.verify(read.key, read.row)
            except Exception as damage:  # the edge of the thread, as above
                error = damage
        if error is None:
            read.future.set_result(None)
        else:
            read.future.set_exception(error)

    def _fill(self, piece: _Piece, buffer: memoryview) -> None:
        read, run, lo, hi = piece
        n_needed = min(hi, run.hi) - lo
        if run.direct_at is not None:
            start = run.direct_at + lo - run.block_lo
            self._files.read(run.file, read.row[start : start + hi - lo], lo, n_needed)
            return
        self._files.read(run.file, buffer[: hi - lo], lo, n_needed)
        # through numpy, which copies without the interpreter's lock
        source, target = np.frombuffer(buffer, np.uint8), np.frombuffer(read.row, np.uint8)
        for offset, place, length in run.moves:
            first, end = max(lo, offset), min(hi, offset + length)
            if first < end:
                at = place + first - offset
                np.copyto(target[at : at + end - first], source[first - lo : end - lo])
