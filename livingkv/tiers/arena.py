"""Memory of a fixed size, cut into rooms of one size: it cannot grow and cannot fragment.

Knows addresses and rooms; refuses to know what lies in them. Not thread-safe.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from livingkv.large_pages import private_mapping

Register = Callable[[int, int], Callable[[], None]]
"""Given an address and a number of bytes, pins that memory for a device; answers what undoes it."""


class Arena:
    """`n_rooms` rooms of `room_bytes` each, in one anonymous mapping that begins at a memory page.

    Rooms that were never used take no memory, unless `register` pins the whole. That takes 0.2 s for each GB:
    in_background, rooms are used meanwhile, not pinned yet.
    """

    def __init__(
        self, n_rooms: int, room_bytes: int, register: Register | None = None, *, in_background: bool = False
    ) -> None:
        self.n_rooms = n_rooms
        self.room_bytes = room_bytes
        self._mapping = private_mapping(n_rooms * room_bytes)  # rooms are used from the first on
        self._whole = memoryview(self._mapping)
        self._unregister: Callable[[], None] | None = None
        self._pinning: Thread | None = None
        if register is not None:
            self._keep_from_children()
            if in_background:
                self._pinning = Thread(target=self._pin, args=(register,), name="livingkv-pin")
                self._pinning.start()
            else:
                self._pin(register)
        self._free = list(range(n_rooms - 1, -1, -1))

    def _keep_from_children(self) -> None:
        """A fork would make a page that is written to next another page than the one that the device reads."""
        if hasattr(mmap, "MADV_DONTFORK"):
            with suppress(OSError):  # a kernel without it
                self._mapping.madvise(mmap.MADV_DONTFORK)

    def _pin(self, register: Register) -> None:
        self._unregister = register(self._address(), self.n_rooms * self.room_bytes)

    def _address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))

    @property
    def n_free(self) -> int:
        """Rooms that nobody has."""
        return len(self._free)

    def take(self) -> int:
        """A free room's number: the lowest that was never used, or the one given back last."""
        return self._free.pop()

    def give_back(self, room: int) -> None:
        """The room is free again."""
        assert 0 <= room < self.n_rooms
        self._free.append(room)

    def view(self, room: int) -> memoryview:
        """A room's bytes."""
        return self._whole[room * self.room_bytes : (room + 1) * self.room_bytes]

    def erase(self, room: int) -> None:
        """Overwrite a room with zeros."""
        ctypes.memset(self._address() + room * self.room_bytes, 0, self.room_bytes)

    def close(self) -> None:
        """Unpin and unmap. Views that are still out keep the mapping alive until the last of them is gone."""
        if self._pinning is not None:
            self._pinning.join()
        if self._unregister is not None:
            self._unregister()
            self._unregister = None
        self._free.clear()
        try:
            self._whole.release()
            self._mapping.close()
        except BufferError:
            pass  # a reader holds a view: the memory goes with it
