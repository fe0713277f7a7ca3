"""A disk that remembers what was synced, and what it may show when power fails."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from livingkv.store import Disk, Step

EventKind = Literal["new", "write", "truncate", "sync", "folder", "remove", "rename", "commit"]


@dataclass(frozen=True)
class Event:
    """One operation. `data` is what was written, or the catalog's file at a commit."""

    kind: EventKind
    path: Path
    offset: int = 0
    data: bytes = b""
    target: Path | None = None


class RecordingDisk(Disk):
    """Works, and remembers every change below `root` in order."""

    def __init__(self, root: Path, *, syncs: bool = True) -> None:
        self.events: list[Event] = []
        self._root = root
        self._syncs = syncs  # False: a store that forgets to sync, which the replay must catch
        self._paths: dict[int, Path] = {}

    def _note(
        self, kind: EventKind, path: Path, offset: int = 0, data: bytes = b"", target: Path | None = None
    ) -> None:
        relative = None if target is None else target.relative_to(self._root)
        self.events.append(Event(kind, path.relative_to(self._root), offset, data, relative))

    def open_new(self, path: Path) -> int:
        descriptor = super().open_new(path)
        self._paths[descriptor] = path
        self._note("new", path)
        return descriptor

    def open_existing(self, path: Path, *, writable: bool) -> int:
        descriptor = super().open_existing(path, writable=writable)
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, parts: Sequence[bytes], offset: int) -> None:
        super().write(descriptor, parts, offset)
        self._note("write", self._paths[descriptor], offset, b"".join(parts))

    def sync(self, descriptor: int) -> None:
        if self._syncs:
            self._note("sync", self._paths[descriptor])

    def sync_folder(self, path: Path) -> None:
        if self._syncs and path.is_relative_to(self._root):
            self._note("folder", path)

    def truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)
        self._note("truncate", self._paths[descriptor], size)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._note("rename", old, target=new)

    def remove(self, path: Path) -> None:
        if path.exists():
            super().remove(path)
            self._note("remove", path)

    def reached(self, step: Step) -> None:
        if step in (Step.COMMITTED, Step.CATALOG_MADE):
            catalog = self._root / "catalog" / "data.mdb"
            self._note("commit", catalog, data=catalog.read_bytes())


@dataclass
class _File:
    content: bytearray = field(default_factory=bytearray)
    pending: list[Event] = field(default_factory=list)


def after_power_loss(events: Sequence[Event], root: Path, rng: random.Random) -> None:
    """Make the folder `root` as a disk may show it when power fails after `events`.

    Of what was not synced, each write, cut, new name and removal may or may not have happened; a write may be torn.
    The catalog is as its last commit left it: that LMDB keeps its own promise is LMDB's tests' business.
    """
    files: dict[Path, _File] = {}
    durable_names: dict[Path, _File] = {}
    names: dict[Path, _File] = {}
    catalog = b""
    for event in events:
        _apply(event, files, names, durable_names)
        if event.kind == "commit":
            catalog = event.data
    for folder in ("segments", "catalog"):
        (root / folder).mkdir(parents=True)
    if catalog:
        (root / "catalog" / "data.mdb").write_bytes(catalog)
    for path in durable_names.keys() | names.keys():
        file = rng.choice([durable_names.get(path), names.get(path)])
        if file is not None:
            (root / path).write_bytes(_content(file, rng))


def _apply(event: Event, files: dict[Path, _File], names: dict[Path, _File], durable_names: dict[Path, _File]) -> None:
    if event.kind == "new":
        files[event.path] = names[event.path] = _File()
    elif event.kind in ("write", "truncate"):
        files[event.path].pending.append(event)
    elif event.kind == "sync":
        file = files[event.path]
        for pending in file.pending:
            _write(file.content, pending, len(pending.data))
        file.pending.clear()
    elif event.kind == "remove":
        names.pop(event.path, None)
    elif event.kind == "rename":
        assert event.target is not None
        files[event.target] = names[event.target] = names.pop(event.path)
    elif event.kind == "folder":
        for path in names.keys() | durable_names.keys():
            if path.parent == event.path:
                if path in names:
                    durable_names[path] = names[path]
                else:
                    durable_names.pop(path)


def _content(file: _File, rng: random.Random) -> bytes:
    content = bytearray(file.content)
    for pending in file.pending:
        if rng.random() < 0.5:
            _write(content, pending, rng.choice([len(pending.data), rng.randrange(len(pending.data) + 1)]))
    return bytes(content)


def _write(content: bytearray, event: Event, n_bytes: int) -> None:
    if event.kind == "truncate":
        del content[event.offset :]
        return
    if len(content) < event.offset:
        content.extend(bytes(event.offset - len(content)))
    content[event.offset : event.offset + n_bytes] = event.data[:n_bytes]
