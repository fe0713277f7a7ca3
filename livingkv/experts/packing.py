"""`pack`: copies the experts of a checkpoint into blocks of their own, so that each of them is one read.

Whole or not there: it is written beside its name, goes on where it was broken off, and is compared with the source
before it gets its name. Knows files and rows; refuses to know what experts compute.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import xxhash

from livingkv.errors import InputError, PackError
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.index import ExpertIndex
from livingkv.experts.keys import ExpertKey
from livingkv.experts.one_expert import slot_bytes
from livingkv.experts.pack_index import PackIndex, open_pack
from livingkv.experts.pack_layout import BLOCKS, MANIFEST, PackLayout, begun, canonical, layout_of, with_checksums
from livingkv.experts.pread_source import PIECE_BYTES, PreadSource
from livingkv.model_fetch import sync_folder
from livingkv.regular_files import open_regular, read_regular
from livingkv.tiers.arena import Arena

BEGUN, CHECKSUMS = "begun.json", "checksums.bin"
SYNC_BYTES = 256 << 20
"""How much is written before it is synced: what a broken making loses at most."""
N_CHECKED = 32
_N_ROWS = 4
_N_THREADS = 4
_SPARE_BYTES = 1 << 20

Progress = Callable[[int, int], None]
"""Bytes of blocks that are written, and of all."""


class PackReport(NamedTuple):
    """What was made. n_resumed: experts that an earlier, broken making had written. n_checked: compared afterwards."""

    path: Path
    n_experts: int
    n_resumed: int
    n_checked: int
    size_bytes: int


def pack(
    index: ExpertIndex, path: str | Path, progress: Progress | None = None, *, sync_bytes: int = SYNC_BYTES
) -> PackReport:
    """Write a pack of that checkpoint's experts to the folder `path`, which must not exist. Blocks until it is durable.

    `path`.partial holds what is done meanwhile, and stays when it fails: the same call goes on from there.
    Raises InputError where something has that name and where the disk has not enough room, ExpertReadError where the
    source cannot be read, PackError where the pack cannot be written or does not read back as it should.
    """
    path = Path(path)
    if isinstance(index, PackIndex):
        raise InputError("index", index.checkpoint.files[0].path, "the index of a checkpoint is allowed, not of a pack")
    if os.path.lexists(path):
        raise InputError("path", path, "something has that name; give another one, or remove it")
    layout = layout_of(index)
    with _disk_errors(path), ExitStack() as undo:
        work = _Work(index, layout, path.with_name(f"{path.name}.partial"), undo)
        n_resumed = len(work.checksums)
        work.require_room()
        work.copy(progress, sync_bytes)
        manifest = with_checksums(begun(index, layout), layout, work.checksums)
        work.write(MANIFEST, manifest)
        n_checked = _spot_check(index, work.folder)
        work.finish(path)
    return PackReport(path, len(work.checksums), n_resumed, n_checked, layout.size_bytes)


class _Work:
    """A pack that is being made, in its folder, which is locked."""

    def __init__(self, index: ExpertIndex, layout: PackLayout, folder: Path, undo: ExitStack) -> None:
        self._index, self._layout, self.folder = index, layout, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._blocks = open_regular(folder / BLOCKS, os.O_RDWR | os.O_CREAT)
        undo.callback(os.close, self._blocks)
        try:
            fcntl.flock(self._blocks, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PackError(f"{folder}: another process is packing into it; wait for it") from error
        if not _is_still(folder / BLOCKS, self._blocks):  # whoever had the lock gave the pack its name meanwhile
            raise PackError(f"{folder}: another process finished it just now; look for the pack there")
        self.checksums = self._intact(self._resumed())
        self._n_synced = len(self.checksums)

    def require_room(self) -> None:
        """Raise InputError where what is left to write does not fit on the disk."""
        n_done = len(self.checksums)
        keys = list(self._index.experts())
        done_bytes = self._layout.start(keys[n_done]) if n_done < len(keys) else self._layout.size_bytes
        needed = self._layout.size_bytes - done_bytes + 32 * len(keys) + _SPARE_BYTES
        os.ftruncate(self._blocks, done_bytes)  # what has no checksum gives its room back first
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise InputError(
                "path", self.folder, f"{needed / 1e9:.3f} GB are needed there and {free / 1e9:.3f} are free"
            )

    def copy(self, progress: Progress | None, sync_bytes: int) -> None:
        """Write every block that has no checksum yet."""
        unsynced = 0
        for key, block in _blocks(self._index, self._layout, len(self.checksums)):
            _write(self._blocks, block, self._layout.start(key))
            self.checksums.append(xxhash.xxh3_64_intdigest(block[: self._layout.end(key)]))
            unsynced += len(block)
            if unsynced >= sync_bytes:
                self._sync()
                unsynced = 0
            if progress is not None:
                progress(self._layout.start(key) + len(block), self._layout.size_bytes)
        self._sync()

    def write(self, name: str, data: bytes, at: int = 0) -> None:
        """A small file, durable: its first `at` bytes as they are, then these."""
        descriptor = open_regular(self.folder / name, os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(descriptor, at)
            _write(descriptor, data, at)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def finish(self, path: Path) -> None:
        """Give the pack its name."""
        for name in (BEGUN, CHECKSUMS):
            (self.folder / name).unlink()
        sync_folder(self.folder)
        self.folder.rename(path)
        sync_folder(path.parent)

    def _resumed(self) -> list[int]:
        """Checksums of the blocks that are there already: none where another pack was begun, or none was."""
        saying = canonical(begun(self._index, self._layout))
        try:
            if read_regular(self.folder / BEGUN) == saying:
                data = read_regular(self.folder / CHECKSUMS)
                n_there = min(len(data) // 8, sum(layer.n_experts for layer in self._index.layers))
                return [int.from_bytes(data[at : at + 8], "little") for at in range(0, 8 * n_there, 8)]
        except FileNotFoundError:
            pass
        self.write(CHECKSUMS, b"")
        self.write(BEGUN, saying)
        sync_folder(self.folder)
        return []

    def _intact(self, checksums: list[int]) -> list[int]:
        """Those up to the first whose block is not what was written: a crash may have left anything."""
        for number, (key, checksum) in enumerate(zip(self._index.experts(), checksums, strict=False)):
            data = os.pread(self._blocks, self._layout.end(key), self._layout.start(key))
            if len(data) != self._layout.end(key) or xxhash.xxh3_64_intdigest(data) != checksum:
                return checksums[:number]
        return checksums

    def _sync(self) -> None:
        os.fsync(self._blocks)
        if hasattr(os, "posix_fadvise"):  # what is on the disk need not stay in the page cache
            os.posix_fadvise(self._blocks, 0, 0, os.POSIX_FADV_DONTNEED)
        new = self.checksums[self._n_synced :]
        self.write(CHECKSUMS, b"".join(checksum.to_bytes(8, "little") for checksum in new), at=8 * self._n_synced)
        self._n_synced = len(self.checksums)


def _blocks(index: ExpertIndex, layout: PackLayout, first: int) -> Iterator[tuple[ExpertKey, memoryview]]:
    """Every expert's block from number `first` on, in order. A block is valid until the next one is asked for."""
    arena = Arena(_N_ROWS, index.row_bytes)
    files = CheckpointFiles(index.checkpoint, direct=True)
    source = PreadSource(index, files, _N_THREADS, min(PIECE_BYTES, index.row_bytes))
    block = bytearray(max(packed.block_bytes for packed in layout.layers))
    try:
        waiting: deque[tuple[ExpertKey, memoryview, Future[None]]] = deque()
        keys = list(index.experts())[first:]
        for number, key in enumerate(keys):
            row = arena.view(number % _N_ROWS)
            if len(waiting) == _N_ROWS:
                yield _block(index, layout, *waiting.popleft(), block)
            waiting.append((key, row, source.read(key, row)))
        while waiting:
            yield _block(index, layout, *waiting.popleft(), block)
    finally:
        source.close()
        arena.close()


def _block(
    index: ExpertIndex, layout: PackLayout, key: ExpertKey, row: memoryview, future: Future[None], block: bytearray
) -> tuple[ExpertKey, memoryview]:
    future.result()
    packed = layout.layers[key.layer]
    block[:] = bytes(len(block))
    for slot, at in zip(packed.layer.slots, index.placement(key).slot_offsets, strict=True):
        to = int(packed.layer.offsets[key.expert, slot.parts[0]]) - layout.start(key)
        block[to : to + slot.n_bytes] = row[at : at + slot.n_bytes]
    return key, memoryview(block)[: packed.block_bytes]


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the file that was opened by a path is the one that lies there."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    left = memoryview(data)
    while left:
        n_written = os.pwrite(descriptor, left, offset)
        left, offset = left[n_written:], offset + n_written


def _spot_check(index: ExpertIndex, folder: Path) -> int:
    """Compare some experts of the pack in that folder, read as streaming reads them, with the source, read otherwise.

    Raises PackError where one differs; nothing of the pack is then used again.
    """
    keys = list(index.experts())
    chosen = random.Random(index.checkpoint.fingerprint).sample(keys, min(N_CHECKED, len(keys)))
    packed = open_pack(folder, index)
    with ExitStack() as undo:
        plain = CheckpointFiles(index.checkpoint, direct=False)
        undo.callback(plain.close)
        source = PreadSource(packed, CheckpointFiles(packed.checkpoint, direct=True), 1, packed.row_bytes)
        undo.callback(source.close)
        arena = Arena(1, packed.row_bytes)
        undo.callback(arena.close)
        for key in chosen:
            row = arena.view(0)
            lost = source.read(key, row).exception()
            expected = slot_bytes(index, key, plain)
            slots = zip(packed.layers[key.layer].slots, packed.placement(key).slot_offsets, strict=True)
            if lost or any(row[at : at + slot.n_bytes] != expected[slot.tensor] for slot, at in slots):
                (folder / BEGUN).unlink()
                what = f"{index.name(key)} differs from the checkpoint"
                raise PackError(f"{folder}: {what}; check the disk and pack again, from the start") from lost
    return len(chosen)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise PackError(
            f"{path}: it cannot be written ({reason}); pack again when it can, it goes on from there"
        ) from error
