"""A disk that remembers what was written and what was synced, and how it may look after power was lost."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from livingkv.store import Disk, Step

EventKind = Literal["new", "write", "truncate", "sync", "folder", "remove", "rename", "rename folder", "commit", "lost"]
_META_BYTES = 8192  # LMDB's two meta pages, one of which every commit changes


@dataclass(frozen=True)
class Event:
    """One operation. `file` is which file, whatever its name is then; `data` what was written, or all of the catalog's
    file after one of LMDB's commits."""

    kind: EventKind
    path: Path
    file: int = 0
    offset: int = 0
    data: bytes = b""
    target: Path | None = None


class RecordingDisk(Disk):
    """Works, and remembers every change below `root` in order."""

    def __init__(self, root: Path, *, syncs: bool = True) -> None:
        self.events: list[Event] = []
        self._root = root
        self._syncs = syncs  # False: a store that forgets to sync, which the replay must catch
        self._open: dict[int, tuple[Path, int]] = {}  # by descriptor
        self._numbers: dict[Path, int] = {}
        self._n_files = 0
        self._metas: dict[Path, bytes] = {}

    def _note(self, event: Event) -> None:
        self.note_commits()
        if event.path.is_relative_to(self._root):
            target = None if event.target is None else event.target.relative_to(self._root)
            path = event.path.relative_to(self._root)
            self.events.append(Event(event.kind, path, event.file, event.offset, event.data, target))

    def note_commits(self) -> None:
        """Remember the catalog if LMDB has committed since the last event."""
        for name in ("catalog", "catalog.new"):
            path = self._root / name / "data.mdb"
            if path.exists():
                with path.open("rb") as file:
                    meta = file.read(_META_BYTES)
                if meta != self._metas.get(path) and len(meta) == _META_BYTES:
                    self._metas[path] = meta
                    self.events.append(Event("commit", Path(name), data=path.read_bytes()))

    def lose_catalog(self) -> None:
        """Somebody removes the catalog; no store is open."""
        shutil.rmtree(self._root / "catalog")
        self._metas.clear()
        self.events.append(Event("lost", Path("catalog")))

    def open_new(self, path: Path) -> int:
        descriptor = super().open_new(path)
        self._n_files += 1
        self._numbers[path] = self._n_files
        self._open[descriptor] = path, self._n_files
        self._note(Event("new", path, self._n_files))
        return descriptor

    def open_existing(self, path: Path, *, writable: bool) -> int:
        descriptor = super().open_existing(path, writable=writable)
        self._open[descriptor] = path, self._numbers.get(path, 0)
        return descriptor

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview], offset: int) -> None:
        super().write(descriptor, parts, offset)
        path, file = self._open[descriptor]
        self._note(Event("write", path, file, offset, b"".join(parts)))

    def sync(self, descriptor: int) -> None:
        path, file = self._open[descriptor]
        if self._syncs:
            self._note(Event("sync", path, file))

    def sync_folder(self, path: Path) -> None:
        if self._syncs:
            self._note(Event("folder", path))

    def truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)
        path, file = self._open[descriptor]
        self._note(Event("truncate", path, file, size))

    def rename(self, old: Path, new: Path) -> None:
        is_folder = old.is_dir()
        super().rename(old, new)
        if is_folder:
            self._metas[new / "data.mdb"] = self._metas.pop(old / "data.mdb", b"")
        else:
            self._numbers[new] = self._numbers.pop(old)
        self._note(Event("rename folder" if is_folder else "rename", old, target=new))

    def remove(self, path: Path) -> None:
        if path.exists():
            super().remove(path)
            self._numbers.pop(path, None)
            self._note(Event("remove", path))

    def reached(self, step: Step) -> None:
        self.note_commits()


@dataclass
class _File:
    content: bytearray = field(default_factory=bytearray)
    pending: list[Event] = field(default_factory=list)


class _Replay:
    """Files, names and catalogs on their way through the events."""

    def __init__(self) -> None:
        self.files: dict[int, _File] = {}
        self.names: dict[Path, int] = {}
        self.durable_names: dict[Path, int] = {}
        self.catalogs: list[dict[Path, int]] = [{}]  # names that may be found, the last is what a reader sees now
        self.contents: list[bytes] = []

    def apply(self, event: Event) -> None:
        if event.kind == "new":
            self.files[event.file] = _File()
            self.names[event.path] = event.file
        elif event.kind in ("write", "truncate"):
            self.files[event.file].pending.append(event)
        elif event.kind == "sync":
            file = self.files[event.file]
            for pending in file.pending:
                _write(file.content, pending, len(pending.data))
            file.pending.clear()
        elif event.kind == "remove":
            self.names.pop(event.path, None)
        elif event.kind == "rename":
            assert event.target is not None
            self.names[event.target] = self.names.pop(event.path)
        elif event.kind == "folder":
            self._sync_folder(event.path)
        else:
            self._apply_to_catalog(event)

    def _sync_folder(self, folder: Path) -> None:
        for path in self.names.keys() | self.durable_names.keys():
            if path.parent == folder:
                if path in self.names:
                    self.durable_names[path] = self.names[path]
                else:
                    self.durable_names.pop(path)
        if folder == Path():
            self.catalogs = self.catalogs[-1:]

    def _apply_to_catalog(self, event: Event) -> None:
        now = self.catalogs[-1]
        if event.kind == "commit":  # LMDB has synced it; that it keeps its promise is its tests' business
            if event.path in now:
                self.contents[now[event.path]] = event.data
            else:
                for names in self.catalogs:
                    names[event.path] = len(self.contents)
                self.contents.append(event.data)
        elif event.kind == "lost":
            self.catalogs = [{path: number for path, number in now.items() if path != event.path}]
        else:
            assert event.kind == "rename folder"
            assert event.target is not None
            moved = {path: number for path, number in now.items() if path != event.path}
            self.catalogs.append(moved | {event.target: now[event.path]})


def after_power_loss(events: Sequence[Event], root: Path, rng: random.Random) -> None:
    """Make the folder `root` as a disk may show it when power fails after `events`.

    Of what was not synced, each write, cut, new name and removal may or may not have happened; a write may be torn.
    Renamed folders were renamed in order, up to some point.
    """
    replay = _Replay()
    for event in events:
        replay.apply(event)
    for folder in ("segments", "catalog"):
        (root / folder).mkdir(parents=True)
    for folder_path, number in rng.choice(replay.catalogs).items():
        (root / folder_path).mkdir(exist_ok=True)
        (root / folder_path / "data.mdb").write_bytes(replay.contents[number])
    for path in sorted(replay.durable_names.keys() | replay.names.keys()):
        file = rng.choice([replay.durable_names.get(path), replay.names.get(path)])
        if file is not None:
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_bytes(_content(replay.files[file], rng))


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
