"""Snapshots of one tenant: in RAM and on disk, those used longest ago go first, within budgets of bytes.

A snapshot is found by its tokens: the longest that are the beginning of a prompt and not all of it. One that is
damaged, or belongs to something else, is not there, and the log says why. Used by one thread.
Knows tokens and caches; refuses to know networks and files.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from livingkv.errors import InputError, SnapshotDamaged, StoreError
from livingkv.snapshots.cropping import crop, may_crop
from livingkv.snapshots.key import SnapshotKey
from livingkv.snapshots.snapshot_file import Snapshot, Tokens
from livingkv.snapshots.snapshot_folder import SnapshotFolder, SnapshotName, name_of
from livingkv.snapshots.state import restored_cache, state_of
from livingkv.store.disk import Disk

LOG = logging.getLogger("livingkv.snapshots")


class Tier(Enum):
    """Where a snapshot was found."""

    RAM = "ram"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class SnapshotCounts:
    """n_refused: that were damaged or of something else. n_unwritten: that the disk did not take. n_saved_tokens: of
    prompts, that a restored state had read. Evicted: for others, within a budget; what is forgotten is not in it."""

    n_found_in_ram: int = 0
    n_found_on_disk: int = 0
    n_missed: int = 0
    n_refused: int = 0
    n_taken: int = 0
    n_unwritten: int = 0
    n_saved_tokens: int = 0
    n_evicted_from_ram: int = 0
    n_evicted_from_disk: int = 0
    ram_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """A cache that has read the first `n_tokens` of the prompt. It is the caller's own."""

    cache: Any
    n_tokens: int
    tier: Tier
    seconds: float


@dataclass(frozen=True, slots=True)
class Taken:
    """Where a snapshot is now. reason: why not on disk, where it was to go there."""

    n_bytes: int
    in_ram: bool
    on_disk: bool
    reason: str | None = None


class _Candidate(NamedTuple):
    snapshot: Snapshot
    n_tokens: int
    tier: Tier


class Snapshots:
    """folder: of one tenant; None: RAM only. fresh: makes the model's caches. device: for what was not on the CPU.

    Budgets are hard; 0 keeps nothing there. Raises StoreError where the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path | None,
        key: SnapshotKey,
        fresh: Callable[[], Any],
        *,
        ram_bytes: int,
        disk_bytes: int,
        device: torch.device | str = "cpu",
        disk: Disk | None = None,
    ) -> None:
        if ram_bytes < 0 or disk_bytes < 0:
            raise InputError("ram_bytes, disk_bytes", f"{ram_bytes}, {disk_bytes}", "0 and more are allowed")
        self._folder = None if folder is None else SnapshotFolder(folder, key, disk_bytes, disk or Disk())
        self._fresh = fresh
        self._ram_bytes = ram_bytes
        self._device = torch.device(device)
        self._ram: OrderedDict[SnapshotName, Snapshot] = OrderedDict()
        self._may_crop = may_crop(fresh())
        self._n_forgotten: Counter[str | None] = Counter()
        self._counts = SnapshotCounts()

    def counts(self) -> SnapshotCounts:
        """What was found, taken and refused, and how full both tiers are."""
        ram_bytes = sum(one.n_bytes for one in self._ram.values())
        n_evicted, disk_bytes = (self._folder.n_evicted, self._folder.n_bytes) if self._folder else (0, 0)
        return replace(self._counts, ram_bytes=ram_bytes, disk_bytes=disk_bytes, n_evicted_from_disk=n_evicted)

    def longest(self, tokens: Sequence[int], *, user: str = "") -> Restored | None:
        """The state after as much of the prompt as possible, at least one token of it being left; None: read it all.

        Never raises because of a snapshot: one that cannot be used is skipped, logged and removed.
        """
        started = perf_counter()
        for found in self._candidates(np.array(tokens, np.int64), user):
            try:
                cache = restored_cache(found.snapshot.state, self._fresh, self._device)
            except SnapshotDamaged as error:
                self._refuse(name_of(user, found.snapshot.tokens), error)
                continue
            if found.n_tokens < len(found.snapshot.tokens):
                crop(cache, found.n_tokens)
            name = name_of(user, found.snapshot.tokens)
            if name in self._ram:
                self._ram.move_to_end(name)
            self._note("n_found_in_ram" if found.tier is Tier.RAM else "n_found_on_disk")
            self._note("n_saved_tokens", found.n_tokens)
            return Restored(cache, found.n_tokens, found.tier, perf_counter() - started)
        self._note("n_missed")
        return None

    def take(self, tokens: Sequence[int], cache: Any, *, user: str = "", on_disk: bool = True) -> Taken:
        """Keep a copy of the cache, which has read exactly those tokens; durable where the answer says `on_disk`.

        A disk that is full or broken is a reason in the answer, not an error. Raises UnsupportedModel for a cache that
        cannot be kept.
        """
        snapshot = Snapshot(user, np.array(tokens, np.int64), state_of(cache))
        in_ram = self._keep_in_ram(snapshot)
        self._note("n_taken")
        if not on_disk:
            return Taken(snapshot.n_bytes, in_ram, on_disk=False)
        reason = self._write(snapshot)
        return Taken(snapshot.n_bytes, in_ram, reason is None, reason)

    def write(self, tokens: Sequence[int], *, user: str = "") -> bool:
        """Write a snapshot that RAM holds to disk, if it is not there. False: RAM has it not, or the disk refused."""
        snapshot = self._ram.get(name_of(user, np.array(tokens, np.int64)))
        return snapshot is not None and self._write(snapshot) is None

    def forget(self, user: str | None = None) -> int:
        """Remove all snapshots of a user, of any model, or of all users, from RAM and disk. Answers how many files.

        A turn that is under way leaves nothing any more. Raises StoreError where a file cannot be removed.
        """
        self._n_forgotten[user] += 1
        for name in [name for name in self._ram if user is None or name.user == user]:
            del self._ram[name]
        return self._folder.forget(user) if self._folder else 0

    def n_forgotten(self, user: str) -> int:
        """How often `forget` was called for that user, or for all: who keeps a state looks whether it was meanwhile."""
        return self._n_forgotten[user] + self._n_forgotten[None]

    def _candidates(self, prompt: Tokens, user: str) -> Iterator[_Candidate]:
        """What can be used for a prompt, the most of it first. Tokens were compared, each of them."""
        shared = self._shared(prompt, user) if self._may_crop else None
        lengths = {name.n_tokens for name in self._ram if name.user == user}
        lengths |= self._folder.lengths(user) if self._folder else set()
        for n_tokens in sorted((one for one in lengths if 0 < one < len(prompt)), reverse=True):
            if shared is not None and shared.n_tokens > n_tokens:
                yield shared
                shared = None
            beginning = prompt[:n_tokens]
            name = name_of(user, beginning)
            kept = self._ram.get(name)
            if kept is not None and np.array_equal(kept.tokens, beginning):
                yield _Candidate(kept, n_tokens, Tier.RAM)
            loaded = self._loaded(name, beginning)
            if loaded is not None:
                self._keep_in_ram(loaded)
                yield _Candidate(loaded, n_tokens, Tier.DISK)
        if shared is not None:
            yield shared

    def _shared(self, prompt: Tokens, user: str) -> _Candidate | None:
        """For caches that can be cut: the snapshot in RAM that begins like the prompt for the longest."""
        best: _Candidate | None = None
        for name, kept in self._ram.items():
            n_compared = min(len(kept.tokens), len(prompt) - 1)
            if name.user != user or n_compared <= (best.n_tokens if best else 0):
                continue
            different = np.flatnonzero(kept.tokens[:n_compared] != prompt[:n_compared])
            n_shared = int(different[0]) if different.size else n_compared
            if n_shared > (best.n_tokens if best else 0):
                best = _Candidate(kept, n_shared, Tier.RAM)
        return best

    def _loaded(self, name: SnapshotName, tokens: Tokens) -> Snapshot | None:
        if self._folder is None:
            return None
        try:
            return self._folder.load(name, tokens)
        except StoreError as error:
            self._refuse(name, error)
            return None

    def _refuse(self, name: SnapshotName, error: StoreError) -> None:
        """A snapshot that is not what it should be goes; one that the drive does not give stays."""
        LOG.warning("a snapshot is not used: %s", error)
        self._note("n_refused")
        self._ram.pop(name, None)
        if self._folder is not None and isinstance(error, SnapshotDamaged):
            self._folder.remove(name)

    def _keep_in_ram(self, snapshot: Snapshot) -> bool:
        name = name_of(snapshot.user, snapshot.tokens)
        self._ram.pop(name, None)
        if snapshot.n_bytes > self._ram_bytes:
            return False
        self._ram[name] = snapshot
        used = sum(one.n_bytes for one in self._ram.values())
        while used > self._ram_bytes:
            _, gone = self._ram.popitem(last=False)
            used -= gone.n_bytes
            self._note("n_evicted_from_ram")
        return True

    def _write(self, snapshot: Snapshot) -> str | None:
        reason = "there is no folder for snapshots" if self._folder is None else self._folder.write(snapshot)
        if reason is not None:
            self._note("n_unwritten")
        return reason

    def _note(self, field: str, n_more: int = 1) -> None:
        self._counts = replace(self._counts, **{field: getattr(self._counts, field) + n_more})
