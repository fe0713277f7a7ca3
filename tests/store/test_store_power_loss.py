"""Power loss: write logs replayed with unsynced writes dropped, torn or kept at random.

SIGKILL does not prove syncing, since the kernel lives on.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from livingkv.errors import LivingKVError
from tests.store.power_loss import RecordingDisk, after_power_loss
from tests.store.store_cases import (
    SessionModel,
    assert_session,
    assert_whole,
    grown,
    new_session,
    new_store,
    read_store,
    write_store,
)

SEED = 20_261_130
History = list[tuple[int, SessionModel | None]]


def recorded(root: Path, *, syncs: bool) -> tuple[RecordingDisk, History]:
    """A store written on a recording disk, and what it holds from which event on."""
    rng = random.Random(SEED)
    disk = RecordingDisk(root, syncs=syncs)
    history: History = []
    with new_store(root, disk=disk, segment_bytes=1500) as store:
        history.append((len(disk.events), None))
        model = new_session(store)
        history.append((len(disk.events), model))
        for _ in range(8):
            model = grown(store, model, rng)
            history.append((len(disk.events), model))
    return disk, history


def lost_or_wrong(disk: RecordingDisk, history: History, n_events: int, root: Path, rng: random.Random) -> bool:
    """True if a store that lost power after `n_events` is not exactly what was acknowledged by then."""
    after_power_loss(disk.events[:n_events], root, rng)
    known = [model for count, model in history if count <= n_events]
    commit = [model for count, model in history if count > n_events]  # a commit may be done but not yet acknowledged
    try:
        if not (root / "manifest.json").exists():
            new_store(root).close()  # the making is finished by the next one
        with read_store(root) as store:
            store.sessions()
        with write_store(root) as store:
            assert_whole(store)
            rows = store.sessions()
            if not rows:
                return bool(known) and known[-1] is not None
            for model in (*known[-1:], *commit[:1]):
                if model is not None and rows[0].n_tokens == len(model.ids) and rows[0].n_bytes == len(model.text):
                    assert_session(store, model)
                    return False
    except (LivingKVError, AssertionError):
        pass
    return True


def test_nothing_acknowledged_is_lost_at_any_moment(folder: Path) -> None:
    disk, history = recorded(folder / "origin", syncs=True)
    rng = random.Random(SEED)
    for n_events in range(1, len(disk.events) + 1):
        root = folder / f"after{n_events}"
        assert not lost_or_wrong(disk, history, n_events, root, rng), f"seed {SEED}, power lost after event {n_events}"


def test_the_replay_catches_a_store_that_does_not_sync(folder: Path) -> None:
    disk, history = recorded(folder / "origin", syncs=False)
    rng = random.Random(SEED)
    first = history[2][0]
    caught = [
        lost_or_wrong(disk, history, n_events, folder / f"after{n_events}", rng)
        for n_events in range(first, len(disk.events) + 1)
    ]
    assert any(caught)


@pytest.mark.slow
def test_many_random_losses(folder: Path) -> None:
    disk, history = recorded(folder / "origin", syncs=True)
    for number in range(2000):
        rng = random.Random(SEED + number)
        n_events = rng.randint(1, len(disk.events))
        assert not lost_or_wrong(disk, history, n_events, folder / f"loss{number}", rng), f"seed {SEED + number}"
