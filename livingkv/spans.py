"""Long reads of files in an order that is known beforehand: several at once, past the page cache where that works.

What is read once need not push out what others use. Knows files and bytes; refuses to know what they are for.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from livingkv.regular_files import open_regular

_ALIGNMENT = 4096
_PIECE_BYTES = 1 << 22
_N_AT_ONCE = 8
_REFUSED = {errno.EINVAL, errno.EOPNOTSUPP}


class Span(NamedTuple):
    """Bytes `[lo, hi)` of a file. number: of whoever wants them."""

    path: Path
    lo: int
    hi: int
    number: int


class Piece(NamedTuple):
    """The next bytes of a span; valid until the next piece is asked for."""

    number: int
    data: memoryview


def read_spans(spans: Iterable[Span]) -> Iterator[Piece]:
    """All bytes of the spans, in their order, those of a span in one piece or more; none for an empty one. Blocks.

    Raises OSError where a file cannot be read, EOFError where it ends before a span does; both name the file.
    """
    with _Files() as files, ThreadPoolExecutor(_N_AT_ONCE, "livingkv-spans") as pool:
        buffers = [mmap.mmap(-1, _PIECE_BYTES) for _ in range(_N_AT_ONCE)]
        waiting: deque[tuple[int, Future[memoryview]]] = deque()
        for number, part in enumerate(_parts(spans)):
            at = number % _N_AT_ONCE
            if len(waiting) == _N_AT_ONCE:
                yield _piece(*waiting.popleft())
            waiting.append((part.number, pool.submit(files.read, part, buffers[at])))
        while waiting:
            yield _piece(*waiting.popleft())


def _piece(number: int, future: Future[memoryview]) -> Piece:
    return Piece(number, future.result())


def _parts(spans: Iterable[Span]) -> Iterator[Span]:
    """The spans, cut where a piece, which begins and ends at whole blocks, ends."""
    for path, lo, hi, number in spans:
        while lo < hi:
            end = min(hi, lo // _ALIGNMENT * _ALIGNMENT + _PIECE_BYTES)
            yield Span(path, lo, end, number)
            lo = end


class _Files:
    """Descriptors, each opened once. Threads share it; a file is opened by the thread that reads it first."""

    def __init__(self) -> None:
        self._direct: dict[Path, int | None] = {}
        self._plain: dict[Path, int] = {}
        self._opened: list[int] = []

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._opened:
            os.close(descriptor)

    def read(self, part: Span, buffer: mmap.mmap) -> memoryview:
        """A part's bytes, in the buffer."""
        start = part.lo // _ALIGNMENT * _ALIGNMENT
        n_needed = part.hi - start
        n_blocks = -(-n_needed // _ALIGNMENT) * _ALIGNMENT
        view, n_read = memoryview(buffer), 0
        while n_read < n_needed:
            direct = self._opened_direct(part.path) if n_read % _ALIGNMENT == 0 else None
            descriptor = self._opened_plain(part.path) if direct is None else direct
            try:
                n_now = os.preadv(descriptor, [view[n_read:n_blocks]], start + n_read)
            except OSError as error:
                if direct is not None and error.errno in _REFUSED:
                    self._direct[part.path] = None
                    continue
                raise OSError(error.errno, error.strerror, str(part.path)) from error
            if n_now == 0:
                raise EOFError(str(part.path))
            n_read += n_now
        return view[part.lo - start : n_needed]

    def _opened_direct(self, path: Path) -> int | None:
        """None where its file system does not read past the page cache."""
        if path not in self._direct:
            found = None
            with contextlib.suppress(OSError):  # the plain one tells what is wrong
                found = self._kept(open_regular(path, os.O_RDONLY | os.O_DIRECT))
            self._direct[path] = found
        return self._direct[path]

    def _opened_plain(self, path: Path) -> int:
        if path not in self._plain:
            self._plain[path] = self._kept(open_regular(path))
        return self._plain[path]

    def _kept(self, descriptor: int) -> int:
        self._opened.append(descriptor)
        return descriptor
