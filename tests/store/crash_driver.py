"""Kills a writing process again and again, and checks what is left against an oracle outside the store.

A process of its own, because it forks: `python -m tests.store.crash_driver FOLDER KILLS SEED` ends KILLS children by
SIGKILL and prints as JSON what it did. The oracle holds the numbers of the operations that were acknowledged.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from livingkv.errors import RecordDamaged, StoreFull, StoreNotFound
from livingkv.store import Disk, Step, Store, erase_store, require_portable
from livingkv.store.manifest import read_manifest
from livingkv.store.stats import folder_bytes
from tests.store.crash_operations import Change, Sessions, applied, operation, perform
from tests.store.faulty_disk import KillingDisk
from tests.store.store_cases import FINGERPRINT, PAGE_TOKENS, assert_session, assert_whole, read_store, write_store

SEGMENT_BYTES = 4000
CATALOG_BYTES = 1 << 24
OPERATIONS_PER_LIFE = 25
STEPS: list[Step | None] = [None, *Step]  # None: in the middle of a write
MAKING = {Step.FOLDERS_MADE, Step.CATALOG_MADE, Step.MANIFEST_WRITTEN, Step.MANIFEST_RENAMED}
REBUILDING = {Step.CATALOG_REMOVED, Step.CATALOG_REBUILT}
ERASING = {Step.ERASURE_MARKED, Step.FILE_ERASED, Step.MARK_REMOVED}
SELDOM = {Step.ARCHIVE_REPLACED, Step.KEY_MADE, Step.KEY_OVERWRITTEN, Step.KEY_REMOVED}
FREQUENT = {
    None, Step.SEGMENT_MADE, Step.PAGES_WRITTEN, Step.LOG_WRITTEN, Step.SEGMENTS_SYNCED, Step.COMMIT_PREPARED,
    Step.COMMITTED,
}  # fmt: skip
RARE = {Step.ERASED, Step.SEGMENT_REMOVED, Step.SCRUBBED}


def budget_of(root: Path) -> int | None:
    """The disk budget that a store keeps, None if there is none, or no store."""
    manifest = read_manifest(root)
    return None if manifest is None else manifest.disk_budget_bytes


def open_store(root: Path, disk: Disk | None = None, budget: int | None = None) -> Store:
    """The store for writing, made if it is not there."""
    return Store.open(
        root, mode="write", fingerprint=FINGERPRINT, create=True, segment_bytes=SEGMENT_BYTES,
        catalog_bytes=CATALOG_BYTES, disk=disk, disk_budget_bytes=budget,
    )  # fmt: skip


class Life:
    """One child: what it does until it is killed, or has done all."""

    def __init__(self, folder: Path, root: Path, seed: int, number: int, first: int, sessions: Sessions) -> None:
        self._rng = random.Random(f"{seed}-life-{number}")
        self.step = STEPS[number % len(STEPS)]
        self.rebuilds = self.step in REBUILDING and (root / "manifest.json").exists()
        self.erases = self.step in ERASING and (root / "manifest.json").exists()
        self.budget: int | None = None
        if self.step not in MAKING and sessions and self._rng.random() < 0.3:
            self.budget = folder_bytes(root) + self._rng.choice([0, 40_000, 150_000])
        self._root, self._seed, self._first, self._sessions = root, f"{seed}-{root.name}", first, sessions
        self._oracle, self._exports = folder / f"oracle-{root.name}", folder / "exports"
        self._exports.mkdir(exist_ok=True)

    def run(self) -> str | None:
        """Where it was killed, None if it did all. Raises AssertionError if it failed by itself."""
        if self.rebuilds:
            shutil.rmtree(self._root / "catalog")
        if self.step is Step.SEGMENT_CUT and (self._root / "segments").is_dir():
            self._leave_uncovered()
        at_random_time = self.step not in MAKING | REBUILDING | ERASING | SELDOM and self._rng.random() < 0.4
        disk = Disk() if at_random_time else KillingDisk(self.step, self._count())
        child = os.fork()
        if not child:
            status = 1
            try:
                self._live(disk)
                status = 0
            finally:
                os._exit(status)
        if at_random_time:
            time.sleep(self._rng.uniform(0, self._rng.choice([0.03, 0.3])))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or not os.WEXITSTATUS(status), "the child failed by itself"
        if not os.WIFSIGNALED(status):
            return None
        return "RANDOM TIME" if at_random_time else self.step.name if self.step else "WRITE"

    def _count(self) -> int:
        """How often the step is passed before."""
        return self._rng.randrange(12 if self.step in FREQUENT else 3 if self.step in RARE else 1)

    def _leave_uncovered(self) -> None:
        """What a writer leaves that died before its commit, so that there is something to cut."""
        (self._root / "segments" / "00900000.seg").write_bytes(b"no commit covers this")
        for path in sorted((self._root / "segments").glob("*.seg"))[:2]:
            with path.open("ab") as file:
                file.write(b"nor this")

    def _live(self, disk: Disk) -> None:
        if self.erases:
            erase_store(self._root, disk=disk)
            return
        if self.rebuilds:
            Store.rebuild_catalog(self._root, catalog_bytes=CATALOG_BYTES, disk=disk)
        descriptor = os.open(self._oracle, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sessions = tailless(self._sessions) if self.rebuilds else self._sessions
        with open_store(self._root, disk) as store:
            with contextlib.suppress(StoreFull):  # the budget is as it was then
                store.limit_disk(self.budget)
            for number in range(self._first, self._first + OPERATIONS_PER_LIFE):
                what = operation(self._seed, number, sessions)
                try:
                    perform(store, what, sessions, self._exports)
                except StoreFull:  # only text is left under the budget
                    return
                os.write(descriptor, f"{number}\n".encode())
                sessions = applied(sessions, what)


def tailless(sessions: Sessions) -> Sessions:
    """The sessions after their catalog was rebuilt: tails were in it only."""
    return {
        name: replace(model, has_tail=model.has_tail and len(model.ids) % PAGE_TOKENS == 0)
        for name, model in sessions.items()
    }


def require_whole(root: Path, sessions: Sessions, may_take: Callable[[int], bool]) -> Sessions:
    """The sessions, with the pages that a budget took of those that it may take from, if the store holds exactly them.

    Byte for byte, for a reader and, recovered, for a writer. Raises AssertionError if it does not.
    """
    with read_store(root) as store:
        found = {row.name: row for row in store.sessions()}
        assert found.keys() == sessions.keys()
        result = {}
        for name, model in sessions.items():
            missing = frozenset(store.missing_pages(found[name].session_id))
            assert missing == model.missing or (missing > model.missing and may_take(model.session_id))
            assert set(found[name].sources) == {chunk.source for chunk in model.chunks} - {""}
            assert (found[name].pinned, found[name].encrypted) == (model.pinned, model.encrypted)
            result[name] = replace(model, missing=missing)
            assert_session(store, result[name])
    for _ in range(2):  # recovering twice is recovering once
        with write_store(root, segment_bytes=SEGMENT_BYTES) as store:
            assert_whole(store)
            for model in result.values():
                assert_session(store, model)
            assert_archive(store, sessions)
    return result


def assert_archive(store: Store, sessions: Sessions) -> None:
    """The archive holds what was pruned; and, of a pruning that broke off, sentences that are still in the store."""
    live = {each.sentence_id for each in store.sentences_after(None, 1 << 30)}
    found = [
        (each.session_id, each.source, each.text.encode("utf-8", "surrogateescape"))
        for each in store.archived()
        if each.sentence_id not in live
    ]
    expected = [(model.session_id, *each) for model in sessions.values() for each in model.archived]
    assert sorted(found) == sorted(expected)


class Run:
    """Lives of one store after another, and what was done in all of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self.kills: Counter[str] = Counter()
        self.acknowledged: Counter[str] = Counter()
        self.n_pages_taken = 0

    def _begin(self, number: int) -> None:
        self._root = self._folder / f"store{number}"
        self._oracle = self._folder / f"oracle-{self._root.name}"
        self._oracle.touch()
        self._sessions: Sessions = {}
        self._first = 0

    def _acknowledge(self) -> None:
        what = operation(f"{self._seed}-{self._root.name}", self._first, self._sessions)
        self.acknowledged[what.kind if isinstance(what, Change) else "append"] += 1
        if isinstance(what, Change) and what.kind == "pin" and not what.is_on:
            self._steady.discard(self._sessions[what.name].session_id)
        self._sessions = applied(self._sessions, what)
        self._first += 1

    def live(self, number: int) -> None:
        """One life. Raises AssertionError if anything acknowledged is lost, or anything is wrong."""
        if number == 0 or STEPS[number % len(STEPS)] in MAKING:
            self._begin(number)
        life = Life(self._folder, self._root, self._seed, number, self._first, self._sessions)
        had_budget = budget_of(self._root) is not None
        self._steady = {model.session_id for model in self._sessions.values() if model.pinned}
        if (place := life.run()) is not None:
            self.kills[place] += 1
        if life.erases:
            with contextlib.suppress(StoreNotFound):  # the last file is gone, and perhaps its folder
                erase_store(self._root)
            assert list(self._root.parent.glob(f"{self._root.name}/*")) == [], "an erased store is there"
            self._begin(number)
        if life.rebuilds:
            self._finish_rebuilding()
            self._sessions = tailless(self._sessions)
        while self._first < len(self._oracle.read_text().split()):
            self._acknowledge()
        if not (self._root / "manifest.json").exists():
            assert not self._sessions, f"life {number}: the store is gone"
            open_store(self._root).close()
        # a budget that is set drops pages before it is written down, and holds until a later life lifts it
        self._compare(has_budget=had_budget or life.budget is not None)
        for path in (self._folder / "exports").iterdir():
            if path.suffix != ".tmp":
                require_portable(path)
            path.unlink()

    def _compare(self, *, has_budget: bool) -> None:
        def may_take(session_id: int) -> bool:
            return has_budget and session_id not in self._steady

        try:
            whole = require_whole(self._root, self._sessions, may_take)
        except AssertionError:  # the last operation was committed and not acknowledged
            with self._oracle.open("a") as file:
                file.write(f"{self._first}\n")
            self._acknowledge()
            whole = require_whole(self._root, self._sessions, may_take)
        self.n_pages_taken += sum(len(model.missing - self._sessions[name].missing) for name, model in whole.items())
        self._sessions = whole

    def _finish_rebuilding(self) -> None:
        try:
            read_store(self._root).close()
        except RecordDamaged:
            report = Store.rebuild_catalog(self._root, catalog_bytes=CATALOG_BYTES)
            assert report.problems == ()


def main(folder: Path, n_kills: int, seed: int) -> None:
    """Kill `n_kills` children; print what was done."""
    run, number = Run(folder, seed), 0
    while run.kills.total() < n_kills:
        try:
            run.live(number)
        except BaseException as error:
            error.add_note(f"seed {seed}, life {number}")
            raise
        number += 1
    done = {"seed": seed, "lives": number, "kills": run.kills, "acknowledged": run.acknowledged}
    print(json.dumps(done | {"pages_taken_by_budgets": run.n_pages_taken}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
