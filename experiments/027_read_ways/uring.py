"""io_uring by its system calls, as much of it as reads need: no library of the package index reads into our memory.

(`liburing` 2026.3.30 takes bytearrays only, which do not begin where direct reads need it; `pyuring` 0.3.3 did not
build.)
Layouts: Linux, include/uapi/linux/io_uring.h. x86-64 only: it relies on stores that are seen in their order.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct

_SETUP, _ENTER = 425, 426
_SINGLE_MMAP, _GET_EVENTS, _OP_READ = 1, 1, 22
_SQ_RING, _SQES = 0, 0x10000000
_SINGLE_ISSUER, _DEFER_TASKRUN = 1 << 12, 1 << 13
_LIBC = ctypes.CDLL(None, use_errno=True)


class Uring:
    """One ring, used by one thread. `n_entries`: a power of two, the most reads in flight."""

    def __init__(self, n_entries: int) -> None:
        params = bytearray(120)
        struct.pack_into("<I", params, 8, _SINGLE_ISSUER | _DEFER_TASKRUN)
        raw = (ctypes.c_char * 120).from_buffer(params)
        self._fd = _call(_SETUP, n_entries, ctypes.addressof(raw))
        (features,) = struct.unpack_from("<I", params, 20)
        assert features & _SINGLE_MMAP
        sq = struct.unpack_from("<7I", params, 40)  # head, tail, mask, entries, flags, dropped, array
        cq = struct.unpack_from("<6I", params, 80)  # head, tail, mask, entries, overflow, cqes
        n_bytes = max(sq[6] + 4 * n_entries, cq[5] + 16 * 2 * n_entries)
        self._ring = mmap.mmap(self._fd, n_bytes, offset=_SQ_RING)
        self._sqes = mmap.mmap(self._fd, 64 * n_entries, offset=_SQES)
        self._sq_tail, self._mask, self._array = sq[1], n_entries - 1, sq[6]
        self._cq_head, self._cq_tail, self._cq_mask, self._cqes = cq[0], cq[1], 2 * n_entries - 1, cq[5]
        self._n_new = 0

    def read(self, fd: int, address: int, n_bytes: int, offset: int, number: int) -> None:
        """Put a read into the queue; `enter` begins it."""
        (tail,) = struct.unpack_from("<I", self._ring, self._sq_tail)
        at = tail & self._mask
        entry = struct.pack("<BBHiQQIIQ", _OP_READ, 0, 0, fd, offset, address, n_bytes, 0, number)
        self._sqes[64 * at : 64 * at + 64] = entry.ljust(64, b"\0")
        struct.pack_into("<I", self._ring, self._array + 4 * at, at)
        struct.pack_into("<I", self._ring, self._sq_tail, (tail + 1) & 0xFFFFFFFF)
        self._n_new += 1

    def enter(self, n_wanted: int) -> None:
        """Begin what is queued, and wait until so many are done."""
        n_begun = _call(_ENTER, self._fd, self._n_new, n_wanted, _GET_EVENTS, 0, 0)
        self._n_new -= n_begun

    def done(self) -> list[tuple[int, int]]:
        """Those that are done: number, and bytes or a negative error."""
        head, tail = (struct.unpack_from("<I", self._ring, at)[0] for at in (self._cq_head, self._cq_tail))
        found = []
        while head != tail:
            number, result = struct.unpack_from("<Qi", self._ring, self._cqes + 16 * (head & self._cq_mask))
            found.append((number, result))
            head = (head + 1) & 0xFFFFFFFF
        struct.pack_into("<I", self._ring, self._cq_head, head)
        return found

    def close(self) -> None:
        """No read may be under way."""
        self._ring.close()
        self._sqes.close()
        os.close(self._fd)


def _call(*arguments: int) -> int:
    result = int(_LIBC.syscall(*map(ctypes.c_long, arguments)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
