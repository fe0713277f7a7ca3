"""Forgetting what was pruned: the archive is cleaned with it, also when the process dies in between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from livingkv.store import Step, Store
from tests.store.faulty_disk import DiesAt
from tests.store.secret_cases import SECRET, secret_store
from tests.store.store_cases import assert_whole, holds, write_store

FORGETTINGS: dict[str, Callable[[Store], object]] = {
    "sentence": lambda store: store.forget_sentences([5, 9]),
    "source": lambda store: store.forget_source(1, "SECRETFILE"),
    "session": lambda store: store.forget_session(1),
    "everything": lambda store: store.forget_everything(),
}


@pytest.mark.parametrize("what", FORGETTINGS)
@pytest.mark.parametrize("step", [Step.COMMITTED, Step.ERASED, Step.ARCHIVE_REPLACED, Step.SCRUBBED])
def test_the_archive_too_is_cleaned_by_the_next_opening(folder: Path, what: str, step: Step) -> None:
    """A forgetting of what was pruned before: its commit says what has to leave the archive."""
    root = folder / "store"
    secret_store(root)[0].close()
    disk = DiesAt()
    with write_store(root, disk=disk) as store:
        store.prune(1, keep=1)
        assert holds(root, SECRET) != []
        disk.step = step
        with contextlib.suppress(KeyboardInterrupt):
            FORGETTINGS[what](store)
            assert (what == "sentence") == (step is Step.ERASED)  # no record is left to erase
            assert step in (Step.ERASED, Step.ARCHIVE_REPLACED)  # by nothing, where nothing stays
    with write_store(root) as store:
        left = [each.sentence_id for each in store.archived()]
        assert left == {"sentence": [0, 1, 2, 3, 4, 6, 7, 8], "source": [0, 1, 2, 3]}.get(what, [])
        assert holds(root, SECRET) == []
        assert_whole(store)


def test_a_draft_of_the_archive_is_erased(folder: Path) -> None:
    """A pruning that died while it wrote the archive anew: what it would have held may be forgotten next."""
    root = folder / "store"
    secret_store(root)[0].close()
    (root / "archive").mkdir()
    (root / "archive" / "sentences.jsonl.tmp").write_bytes(b"half a line: " + SECRET)
    with write_store(root) as store:
        store.forget_sentences([5, 9])
        assert holds(root, SECRET) == []


def test_a_damaged_line_of_the_archive_keeps_nothing_from_being_forgotten(folder: Path) -> None:
    root = folder / "store"
    secret_store(root)[0].close()
    with write_store(root) as store:
        store.prune(1, keep=2)
        path = root / "archive" / "sentences.jsonl"
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        path.write_bytes(bytes(data))
        n_lines = len(data.splitlines())
        store.prune(1, keep=1)
        assert len(path.read_bytes().splitlines()) == n_lines + 1  # kept: somebody may mend it
        store.forget_sentences([5, 9])
        assert 0 not in {each.sentence_id for each in store.archived()}
        assert holds(root, SECRET) == []
