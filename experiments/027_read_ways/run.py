"""io_uring against the pool of threads, for reads as streaming makes them: past the page cache, at random places.

    python run.py FILE [--seconds 0.4] [--repeats 3] [--output result.json]

FILE: as large as it may be, not compressible. Two questions. Steady: reads of one size, so many in flight all the time.
Experts: eight of 9 MiB, in pieces of 1 MiB, all asked for at once and waited for, as a layer of a token does it; before
each the pool is idle. The ways take turns in each repetition. CPU seconds are those of the process, of the kernel's
threads for it too, for a GB (10^9 bytes). Nothing is computed meanwhile. Writes nothing but the output.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import queue
import random
import statistics
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from uring import Uring

from experiments.provenance import circumstances, write_json

PIECE = 1 << 20
EXPERT_PIECES, N_EXPERTS = 9, 8
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
DEPTHS = (1, 2, 4, 8, 16, 32)


class Piece(NamedTuple):
    """A read: where from, how much, and where to, a number of bytes in the memory of the run."""

    offset: int
    n_bytes: int
    at: int


class Threads:
    """A read each in flight: what the package does. Its threads live as long as it."""

    name = "threads"

    def __init__(self, fd: int, memory: mmap.mmap, depth: int) -> None:
        self._fd, self._view = fd, memoryview(memory)
        self._pieces: deque[Piece] = deque()
        self._changed = threading.Condition()
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(depth)]
        for thread in self._threads:
            thread.start()

    def ask(self, pieces: list[Piece]) -> None:
        with self._changed:
            self._pieces.extend(pieces)
            self._changed.notify(len(pieces))

    def wait(self) -> int:
        """Bytes of one read that is done."""
        return self._done.get()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._view.release()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._pieces and not self._closed:
                    self._changed.wait()
                if not self._pieces:
                    return
                piece = self._pieces.popleft()
            self._done.put(os.preadv(self._fd, [self._view[piece.at : piece.at + piece.n_bytes]], piece.offset))


class Ring:
    """At most so many reads in flight in one ring, served by the thread that waits."""

    name = "io_uring"

    def __init__(self, fd: int, memory: mmap.mmap, depth: int) -> None:
        self._fd, self._depth = fd, depth
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._ring = Uring(max(2, depth))
        self._pieces: deque[Piece] = deque()
        self._done: deque[int] = deque()
        self._n_begun = 0

    def ask(self, pieces: list[Piece]) -> None:
        self._pieces.extend(pieces)
        self._begin(0)

    def wait(self) -> int:
        """Bytes of one read that is done."""
        while not self._done:
            self._begin(1)
            for _, result in self._ring.done():
                assert result > 0, os.strerror(-result)
                self._n_begun -= 1
                self._done.append(result)
        return self._done.popleft()

    def close(self) -> None:
        self._ring.close()

    def _begin(self, n_wanted: int) -> None:
        while self._pieces and self._n_begun < self._depth:
            piece = self._pieces.popleft()
            self._ring.read(self._fd, self._address + piece.at, piece.n_bytes, piece.offset, 0)
            self._n_begun += 1
        self._ring.enter(n_wanted)


class Measured(NamedTuple):
    """One run."""

    n_bytes: int
    seconds: float
    cpu_s: float


def steady(way: Threads | Ring, places: Callable[[int], Piece], depth: int, seconds: float) -> Measured:
    """As many in flight as there is depth, until the time is over."""
    started, cpu = perf_counter(), process_time()
    way.ask([places(number) for number in range(depth)])
    n_bytes, n_asked, n_done = 0, depth, 0
    while n_done < n_asked:
        n_bytes += way.wait()
        n_done += 1
        if perf_counter() - started < seconds:
            way.ask([places(n_asked)])
            n_asked += 1
    return Measured(n_bytes, perf_counter() - started, process_time() - cpu)


@dataclass(frozen=True)
class Places:
    """Reads of one size at random places of a file, each of those in flight to a place of its own."""

    chance: random.Random
    file_bytes: int
    size: int
    depth: int

    def at(self, number: int) -> Piece:
        """The read of that number."""
        start = self.chance.randrange(self.file_bytes // self.size) * self.size
        return Piece(start, self.size, number % self.depth * self.size)


def experts(way: Threads | Ring, places: Callable[[int], list[Piece]], seconds: float) -> Measured:
    """Eight experts at once, then nothing until they are all there."""
    started, cpu, n_bytes, number = perf_counter(), process_time(), 0, 0
    while perf_counter() - started < seconds:
        pieces = places(number)
        way.ask(pieces)
        n_bytes += sum(way.wait() for _ in pieces)
        number += 1
    return Measured(n_bytes, perf_counter() - started, process_time() - cpu)


def row(runs: list[Measured], **what: object) -> dict[str, Any]:
    """Median and spread over the repetitions."""
    speeds = [run.n_bytes / run.seconds for run in runs]
    return {
        **what,
        "bytes_per_s": statistics.median(speeds),
        "bytes_per_s_all": speeds,
        "cpu_s_per_gb": statistics.median(run.cpu_s / run.n_bytes * 1e9 for run in runs),
    }


def measure(path: Path, seconds: float, repeats: int) -> list[dict[str, Any]]:
    """All rows."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    n_pieces = os.fstat(fd).st_size // PIECE
    memory = mmap.mmap(-1, max(max(DEPTHS) * max(SIZES), N_EXPERTS * EXPERT_PIECES * PIECE))
    memory.write(bytes(len(memory)))  # its pages are there before anything is measured
    rows = []
    for size in SIZES:
        for depth in DEPTHS:
            runs: dict[str, list[Measured]] = {Threads.name: [], Ring.name: []}
            for repeat in range(repeats):
                for kind in (Threads, Ring) if repeat % 2 == 0 else (Ring, Threads):
                    way, chance = kind(fd, memory, depth), random.Random(f"{size} {depth} {repeat} {kind.name}")
                    runs[kind.name].append(
                        steady(way, Places(chance, n_pieces * PIECE, size, depth).at, depth, seconds)
                    )
                    way.close()
            rows += [row(found, what="steady", way=name, read_bytes=size, depth=depth) for name, found in runs.items()]
    for depth in (8, 16, 32):
        runs = {Threads.name: [], Ring.name: []}
        for repeat in range(repeats):
            for kind in (Threads, Ring) if repeat % 2 == 0 else (Ring, Threads):
                way, chance = kind(fd, memory, depth), random.Random(f"{depth} {repeat} {kind.name}")

                def places(_: int, chance: random.Random = chance) -> list[Piece]:
                    starts = [chance.randrange(n_pieces - EXPERT_PIECES) for _ in range(N_EXPERTS)]
                    return [
                        Piece((start + piece) * PIECE, PIECE, (number * EXPERT_PIECES + piece) * PIECE)
                        for number, start in enumerate(starts)
                        for piece in range(EXPERT_PIECES)
                    ]

                runs[kind.name].append(experts(way, places, 3 * seconds))
                way.close()
        rows += [row(found, what="experts", way=name, read_bytes=PIECE, depth=depth) for name, found in runs.items()]
    os.close(fd)
    return rows


def gains(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """io_uring's speed and CPU time by those of the threads."""
    found = []
    for one in (each for each in rows if each["way"] == Threads.name):
        other = next(
            each
            for each in rows
            if each["way"] == Ring.name and all(each[key] == one[key] for key in ("what", "read_bytes", "depth"))
        )
        found.append(
            {
                **{key: one[key] for key in ("what", "read_bytes", "depth")},
                "speed": round(other["bytes_per_s"] / one["bytes_per_s"], 3),
                "cpu": round(other["cpu_s_per_gb"] / one["cpu_s_per_gb"], 3),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("result.json"))
    asked = parser.parse_args()
    rows = measure(asked.file, asked.seconds, asked.repeats)
    document = {
        "circumstances": circumstances(),
        "kernel": os.uname().release,
        "file_bytes": asked.file.stat().st_size,
        "seconds": asked.seconds,
        "repeats": asked.repeats,
        "load_before": os.getloadavg(),
        "gains_of_io_uring": gains(rows),
        "rows": rows,
    }
    write_json(asked.output, document)
    for one in document["gains_of_io_uring"]:
        print(one)


if __name__ == "__main__":
    main()
