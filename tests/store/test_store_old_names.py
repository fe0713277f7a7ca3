"""Names that sessions bore before: in the files until a defragmentation, and in none once the session is forgotten."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv.store import Step
from tests.store.faulty_disk import DiesAt
from tests.store.store_cases import (
    SessionModel,
    assert_session,
    assert_whole,
    grown,
    holds,
    new_session,
    new_store,
    rebuild,
    write_store,
)

OLD, NEW = b"NAMEOFBEFORE", b"NAMEOFTODAY"


def renamed_store(root: Path) -> tuple[SessionModel, SessionModel]:
    """A store whose session was renamed twice, and forked before; then it was appended to."""
    rng = random.Random(3)
    with new_store(root, segment_bytes=3000) as store:
        model = new_session(store, OLD.decode())
        for _ in range(4):
            model = grown(store, model, rng, n_tokens=9)
        fork = replace(model, session_id=store.fork(1, "fork").session_id, name="fork")
        store.rename(1, f"{OLD.decode()} too")
        store.rename(1, NEW.decode())
        model = grown(store, replace(model, name=NEW.decode()), rng, n_tokens=9)
    return model, fork


def test_an_old_name_is_in_the_files_until_defrag(folder: Path) -> None:
    root = folder / "store"
    model, fork = renamed_store(root)
    assert holds(root, OLD)
    with write_store(root, segment_bytes=3000) as store:
        report = store.defrag(least_dead=1.0)
        assert report.n_segments > 0
        assert holds(root, OLD) == []
        assert store.defrag(least_dead=1.0).n_segments == 0
        assert_session(store, model)
        assert_session(store, fork)
        assert_whole(store)
    rebuild(root)
    with write_store(root) as store:
        assert [row.name for row in store.sessions()] == [NEW.decode(), "fork"]
        assert store.text(1) == model.text
        assert_whole(store)


@pytest.mark.parametrize("step", [Step.LOG_WRITTEN, Step.COMMIT_PREPARED, Step.COMMITTED, Step.SEGMENT_REMOVED])
@pytest.mark.parametrize("loses_catalog", [False, True])
def test_a_defrag_of_old_names_may_break_off(folder: Path, step: Step, loses_catalog: bool) -> None:
    root = folder / "store"
    model, _ = renamed_store(root)
    disk = DiesAt()
    with write_store(root, disk=disk, segment_bytes=3000) as store:
        disk.step = step
        with pytest.raises(KeyboardInterrupt):
            store.defrag(least_dead=1.0)
    if loses_catalog:
        rebuild(root)
    with write_store(root, segment_bytes=3000) as store:
        assert store.session(1).name == NEW.decode()
        assert store.text(1) == model.text
        store.defrag(least_dead=1.0)
        assert holds(root, OLD) == []
        assert_whole(store)


def test_forgetting_takes_all_names_that_a_session_had(folder: Path) -> None:
    root = folder / "store"
    renamed_store(root)
    with write_store(root) as store:
        store.prune(1, keep=2)  # the archive knows the name, too
        store.rename(1, "another")
        assert holds(root, NEW)
        store.forget_session(1)
        assert holds(root, OLD) == holds(root, NEW) == holds(root, b"another") == []
        assert_whole(store)
