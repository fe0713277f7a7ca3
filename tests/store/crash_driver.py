"""Kills a writing process again and again, and checks what is left against an oracle outside the store.

A process of its own, because it forks: `python -m tests.store.crash_driver FOLDER KILLS SEED`. Operation i is made from
(seed, i) and the sessions before it, so that the oracle need only hold which were acknowledged.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from livingkv.store import Append, Disk, Step, Store
from tests.store.faulty_disk import KillingDisk
from tests.store.store_cases import (
    SessionModel,
    assert_session,
    assert_whole,
    make_append,
    new_store,
    read_store,
    write_store,
)

SEGMENT_BYTES = 4000
OPERATIONS_PER_LIFE = 25
STEPS: list[Step | None] = [None, *Step]  # None: in the middle of a write
MAKING = {Step.FOLDERS_MADE, Step.CATALOG_MADE, Step.MANIFEST_WRITTEN, Step.MANIFEST_RENAMED}
Sessions = dict[str, SessionModel]


def operation(seed: int, number: int, sessions: Sessions) -> str | list[Append]:
    """Operation `number`: the name of a session to create, or appends of one commit."""
    rng = random.Random(f"{seed}-{number}")
    if not sessions or (len(sessions) < 4 and rng.random() < 0.1):
        return f"session {len(sessions)}"
    name = rng.choice(sorted(sessions))
    model, appends = sessions[name], []
    for _ in range(rng.choice([1, 1, 1, 3])):
        append = make_append(model, rng, page_bytes=rng.choice([50, 700]), source=rng.choice(["book", "notes"]))
        appends.append(append)
        model = model.applied(append)
    return appends


def applied(sessions: Sessions, what: str | list[Append]) -> Sessions:
    """The sessions after an operation."""
    if isinstance(what, str):
        return sessions | {what: SessionModel(len(sessions) + 1, what)}
    result = dict(sessions)
    for append in what:
        name = next(model.name for model in result.values() if model.session_id == append.session_id)
        result[name] = result[name].applied(append)
    return result


def perform(store: Store, what: str | list[Append]) -> None:
    """Do an operation on a store; durable on return."""
    if isinstance(what, str):
        store.create_session(what)
    else:
        store.append_all(what)


def live(root: Path, oracle: Path, seed: int, first: int, sessions: Sessions, disk: Disk) -> None:
    """The life of one child: open, write, acknowledge each operation in the oracle."""
    descriptor = os.open(oracle, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with new_store(root, disk=disk, segment_bytes=SEGMENT_BYTES) as store:
        for number in range(first, first + OPERATIONS_PER_LIFE):
            what = operation(seed, number, sessions)
            perform(store, what)
            os.write(descriptor, f"{number}\n".encode())
            sessions = applied(sessions, what)


def kill_one(root: Path, oracle: Path, seed: int, life: int, first: int, sessions: Sessions) -> None:
    """Let a child live, and end it at a failpoint, in the middle of a write, or at a random time."""
    rng = random.Random(f"{seed}-life-{life}")
    step = STEPS[life % len(STEPS)]
    at_random_time = step not in MAKING and rng.random() < 0.4
    child = os.fork()
    if not child:
        status = 1
        try:
            disk = (
                Disk()
                if at_random_time
                else KillingDisk(
                    step, 0 if step in MAKING or step in (Step.RECOVERED, Step.SEGMENT_CUT) else rng.randrange(12)
                )
            )
            live(root, oracle, seed, first, sessions, disk)
            status = 0
        finally:
            os._exit(status)
    if at_random_time:
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise AssertionError(f"the child of life {life} failed by itself")


def is_whole(root: Path, sessions: Sessions) -> bool:
    """True if the store holds exactly these sessions, byte for byte, for a reader and, recovered, for a writer."""
    with read_store(root) as store:
        found = [(row.name, row.n_tokens, row.n_turns, store.read_tail(row.session_id)[1]) for row in store.sessions()]
        if found != [(model.name, len(model.ids), model.n_turns, model.tail) for model in sessions.values()]:
            return False
        for model in sessions.values():
            assert_session(store, model)
    with write_store(root, segment_bytes=SEGMENT_BYTES) as store:
        assert_whole(store)
        for model in sessions.values():
            assert_session(store, model)
    with write_store(root, segment_bytes=SEGMENT_BYTES) as store:  # recovering twice is recovering once
        assert_whole(store)
    return True


class Run:
    """Lives of one store after another. `n_acknowledged` counts operations over all of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self.n_acknowledged = 0

    def _begin(self, life: int) -> None:
        self._root, self._oracle = self._folder / f"store{life}", self._folder / f"oracle{life}"
        self._oracle.touch()
        self._sessions: Sessions = {}
        self._first = 0

    def _acknowledge(self) -> None:
        self._sessions = applied(self._sessions, operation(self._seed, self._first, self._sessions))
        self._first += 1
        self.n_acknowledged += 1

    def kill(self, life: int) -> None:
        """One life. Raises AssertionError if anything acknowledged is lost, or anything is wrong."""
        if life == 0 or STEPS[life % len(STEPS)] in MAKING:
            self._begin(life)
        kill_one(self._root, self._oracle, self._seed, life, self._first, self._sessions)
        while self._first < len(self._oracle.read_text().split()):
            self._acknowledge()
        if not (self._root / "manifest.json").exists():
            assert not self._sessions, f"life {life}: the store is gone"
            new_store(self._root).close()
        if not is_whole(self._root, self._sessions):  # the last operation was committed and not acknowledged
            with self._oracle.open("a") as file:
                file.write(f"{self._first}\n")
            self._acknowledge()
            assert is_whole(self._root, self._sessions), f"life {life}: not what was acknowledged"


def main(folder: Path, n_kills: int, seed: int) -> None:
    """Kill `n_kills` children; print the number of operations that were acknowledged."""
    run = Run(folder, seed)
    for life in range(n_kills):
        run.kill(life)
    print(run.n_acknowledged)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
