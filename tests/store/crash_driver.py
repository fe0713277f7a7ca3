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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from livingkv.store import Append, Disk, SessionRow, Step, Store
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
REBUILDING = {Step.CATALOG_REMOVED, Step.CATALOG_REBUILT}
STEPS: list[Step | None] = [None, *(step for step in Step if step not in REBUILDING)]  # None: in the middle of a write
MAKING = {Step.FOLDERS_MADE, Step.CATALOG_MADE, Step.MANIFEST_WRITTEN, Step.MANIFEST_RENAMED}
Sessions = dict[str, SessionModel]


@dataclass(frozen=True)
class Change:
    """What is done to one session: `number` is a sentence, counted in it, or the id of the new session."""

    kind: Literal["create", "fork", "rename", "drop", "repair", "forget", "forget session", "defrag"]
    name: str
    new_name: str = ""
    number: int = 0
    pages: frozenset[int] = frozenset()


Operation = Change | list[Append]


def operation(seed: int, number: int, sessions: Sessions) -> Operation:
    """Operation `number`: a change, or appends of one commit."""
    rng = random.Random(f"{seed}-{number}")
    new_name, n_made = f"session {number}", max((model.session_id for model in sessions.values()), default=0)
    if not sessions or (len(sessions) < 4 and rng.random() < 0.1):
        return Change("create", new_name, number=n_made + 1)
    name = rng.choice(sorted(sessions))
    if rng.random() < 0.4:
        return make_change(rng, sessions, name, new_name, n_made + 1)
    model, appends = sessions[name], []
    for _ in range(rng.choice([1, 1, 1, 3])):
        append = make_append(model, rng, page_bytes=rng.choice([50, 700]), source=rng.choice(["book", "notes"]))
        appends.append(append)
        model = model.applied(append)
    return appends


def make_change(rng: random.Random, sessions: Sessions, name: str, new_name: str, next_id: int) -> Change:
    """A random change of session `name`; `next_id` is the id that a new session gets."""
    model = sessions[name]
    kind = rng.choice(["fork", "rename", "drop", "repair", "forget", "forget session", "defrag"])
    if kind == "fork" and len(sessions) < 5:
        return Change("fork", name, new_name, next_id)
    if kind == "rename":
        return Change("rename", name, new_name)
    if kind == "drop":
        pages = range(len(model.pages))
        return Change("drop", name, pages=frozenset(rng.sample(pages, min(3, len(pages)))))
    if kind == "forget" and model.sentences:
        return Change("forget", name, number=rng.randrange(len(model.sentences)))
    if kind == "forget session" and len(sessions) > 1 and model.session_id < next_id - 1:
        return Change("forget session", name)
    return Change("repair", name) if kind == "repair" else Change("defrag", name)


def _changed(sessions: Sessions, what: Change) -> Sessions:
    if what.kind == "create":
        return sessions | {what.name: SessionModel(what.number, what.name)}
    model, result = sessions[what.name], dict(sessions)
    if what.kind == "fork":
        result[what.new_name] = replace(model, session_id=what.number, name=what.new_name)
    elif what.kind == "rename":
        result = {what.new_name if name == what.name else name: each for name, each in sessions.items()}
        result[what.new_name] = replace(model, name=what.new_name)
    elif what.kind == "drop":
        result[what.name] = model.without_pages(what.pages)
    elif what.kind == "repair":
        result[what.name] = model.repaired()
    elif what.kind == "forget":
        result[what.name] = model.without_sentence(what.number)
    elif what.kind == "forget session":
        del result[what.name]
    return result


def _perform_change(store: Store, what: Change, sessions: Sessions) -> None:
    if what.kind == "create":
        store.create_session(what.name)
        return
    model = sessions[what.name]
    if what.kind == "fork":
        store.fork(model.session_id, what.new_name)
    elif what.kind == "rename":
        store.rename(model.session_id, what.new_name)
    elif what.kind == "drop":
        store.drop_pages(model.session_id, what.pages)
    elif what.kind == "repair":
        store.replace_pages(model.session_id, {page: model.pages[page] for page in model.missing}, tail=model.tail)
    elif what.kind == "forget":
        own = [each for each in store.sentences_after(None, 1 << 30) if each.session_id == model.session_id]
        store.forget_sentences([own[what.number].sentence_id])
    elif what.kind == "forget session":
        store.forget_session(model.session_id)
    else:
        store.defrag()


def applied(sessions: Sessions, what: Operation) -> Sessions:
    """The sessions after an operation."""
    if isinstance(what, Change):
        return _changed(sessions, what)
    result = dict(sessions)
    for append in what:
        name = next(model.name for model in result.values() if model.session_id == append.session_id)
        result[name] = result[name].applied(append)
    return result


def perform(store: Store, what: Operation, sessions: Sessions) -> None:
    """Do an operation on a store that holds `sessions`; durable on return."""
    if isinstance(what, Change):
        _perform_change(store, what, sessions)
    else:
        store.append_all(what)


def live(root: Path, oracle: Path, seed: int, first: int, sessions: Sessions, disk: Disk) -> None:
    """The life of one child: open, write, acknowledge each operation in the oracle."""
    descriptor = os.open(oracle, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with new_store(root, disk=disk, segment_bytes=SEGMENT_BYTES) as store:
        for number in range(first, first + OPERATIONS_PER_LIFE):
            what = operation(seed, number, sessions)
            perform(store, what, sessions)
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


def row_facts(row: SessionRow) -> tuple[object, ...]:
    """What tells whether an operation is there."""
    return row.name, row.session_id, row.n_tokens, row.n_turns, row.n_sentences, row.needs_tail


def model_facts(model: SessionModel) -> tuple[object, ...]:
    """The same of the model."""
    n_sentences = len(model.sentences)
    return model.name, model.session_id, len(model.ids), model.n_turns, n_sentences, not model.has_tail


def is_whole(root: Path, sessions: Sessions) -> bool:
    """True if the store holds exactly these sessions, byte for byte, for a reader and, recovered, for a writer."""
    with read_store(root) as store:
        found = {(*row_facts(row), *store.missing_pages(row.session_id)) for row in store.sessions()}
        if found != {(*model_facts(model), *sorted(model.missing)) for model in sessions.values()}:
            return False
        if not all(store.read_tail(model.session_id)[1] == model.tail for model in sessions.values() if model.has_tail):
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
