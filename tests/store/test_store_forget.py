"""Forgetting: what was forgotten is in no file of the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from livingkv.errors import InputError, PageDropped, SentenceForgotten, SessionNotFound, StoreError
from livingkv.store import Step, Store
from tests.store.faulty_disk import DiesAt
from tests.store.other_process import start
from tests.store.secret_cases import KEPT, KV, SECRET, TAIL, append_words, secret_store
from tests.store.store_cases import (
    assert_session,
    assert_whole,
    holds,
    new_session,
    read_store,
    rebuild,
    write_store,
)


def test_a_forgotten_sentence_is_in_no_file(folder: Path) -> None:
    root = folder / "store"
    store, model = secret_store(root)
    with store, read_store(root) as reader:
        assert holds(root, SECRET)
        assert holds(root, KV)
        assert holds(root, TAIL)
        receipt = store.forget_sentences([5, 9])
        assert receipt.sentence_ids == (5, 9)
        assert (receipt.n_tokens, receipt.n_pages, receipt.n_later_pages, receipt.n_bytes) == (2, 1, 0, 2 * len(SECRET))
        assert receipt.bytes_freed + receipt.bytes_awaiting == receipt.bytes_erased > 9000
        for needle in (SECRET, KV, TAIL):
            assert holds(root, needle) == []
        blank = model.text.replace(SECRET, b" " * len(SECRET))
        for each in (store, reader):
            assert each.text(1) == blank
            assert each.token_ids(1, 4, 7).tolist() == [100, 0, 102]
            assert [sentence.sentence_id for sentence in each.sentences_after(None, 8)] == [0, 1, 2, 3, 4, 6, 7, 8]
            assert [sentence.sentence_id for sentence in each.neighbours(6, 1, 1)] == [6, 7]
            with pytest.raises(SentenceForgotten):
                each.sentence(5)
            with pytest.raises(PageDropped, match="forgotten"):
                each.read_pages(1, [1])
            with pytest.raises(PageDropped):
                each.read_tail(1)
            assert each.read_pages(1, [0]) == [model.pages[0]]
            assert each.gaps(1)[0] == (21 + 3, 21 + 3 + len(SECRET), 5, 6)
            assert each.session(1).n_sentences == 9
        assert_whole(store)
        assert store.forget_sentences([5]).sentence_ids == ()
        with pytest.raises(InputError):
            store.forget_sentences([1, 99])
        before = store.sessions()
    rebuild(root)
    with write_store(root) as store:
        assert store.sessions() == before
        assert store.text(1) == blank
        assert_whole(store)


def test_deep_forgetting_takes_what_attended_it(folder: Path) -> None:
    store, _ = secret_store(folder / "store")
    with store:
        receipt = store.forget_sentences([1], deep=True)
        assert (receipt.n_pages, receipt.n_later_pages) == (1, 1)
        assert store.missing_pages(1) == [0, 1]
        assert store.session(1).needs_tail
        assert holds(folder / "store", TAIL) == holds(folder / "store", KV) == []
        assert_whole(store)


FORGET: dict[str, Callable[[Store], object]] = {
    "source": lambda store: store.forget_source(1, "SECRETFILE"),
    "session": lambda store: store.forget_session(1),
    "everything": lambda store: store.forget_everything(),
}


@pytest.mark.parametrize("what", FORGET)
def test_forgotten_names_are_in_no_file(folder: Path, what: str) -> None:
    root = folder / "store"
    store, model = secret_store(root)
    with store:
        other = new_session(store, "other")
        other = append_words(store, other, [b"x. "] * 9, source="o.txt", kv=b"o")
        FORGET[what](store)
        needles = [SECRET, KV, TAIL, b"SECRETFILE"] + ([] if what == "source" else [b"SECRETNAME", KEPT])
        for needle in needles:
            assert holds(root, needle) == [], needle
        assert_whole(store)
        if what == "source":
            assert store.session(1).sources == ("kept.txt",)
            assert store.text(1, 0, 21) == model.text[:21]
            assert store.source(1, "SECRETFILE", "digest of SECRETFILE") is None
            with pytest.raises(InputError, match="source"):
                store.forget_source(1, "SECRETFILE")
        else:
            with pytest.raises(SessionNotFound):
                store.session(1)
            assert store.create_session("SECRETNAME").session_id == 3
        if what != "everything":
            assert_session(store, other)
        names = [row.name for row in store.sessions()]
    rebuild(root)
    with read_store(root) as store:
        assert [row.name for row in store.sessions()] == names
        assert_whole(store)


@pytest.mark.parametrize("what", ["session", "everything"])
def test_what_was_forgotten_before_is_not_counted_again(folder: Path, what: str) -> None:
    store, _ = secret_store(folder / "store")
    with store:
        store.forget_sentences([0, 5, 9])
        left = tuple(each.sentence_id for each in store.sentences_after(None, 99))
        counted = store.forget_session(1, dry_run=True) if what == "session" else store.forget_everything(dry_run=True)
        done = store.forget_session(1) if what == "session" else store.forget_everything()
    assert counted.sentence_ids == done.sentence_ids == left
    assert (counted.n_tokens, counted.n_pages, counted.n_bytes) == (done.n_tokens, done.n_pages, done.n_bytes)


@pytest.mark.parametrize("step", [Step.COMMIT_PREPARED, Step.COMMITTED, Step.ERASED, Step.SCRUBBED])
def test_a_forgetting_that_breaks_off_is_finished_by_the_next_opening(folder: Path, step: Step) -> None:
    root = folder / "store"
    secret_store(root)[0].close()
    disk = DiesAt()
    with write_store(root, disk=disk) as store:
        disk.step = step
        with pytest.raises(KeyboardInterrupt):
            store.forget_sentences([5, 9])
    with write_store(root) as store:
        if step is Step.COMMIT_PREPARED:
            assert store.sentence(5).raw == SECRET
        else:
            assert holds(root, SECRET) == holds(root, KV) == holds(root, TAIL) == []
        assert_whole(store)


@pytest.mark.slow
def test_a_reader_with_an_old_snapshot_delays_the_receipt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livingkv.store.committing._READERS_WAIT_S", 0.05)
    root = folder / "store"
    secret_store(root)[0].close()
    hold = (
        "import sys\nfrom pathlib import Path\nfrom livingkv.store.catalog import Catalog\n"
        "catalog = Catalog(Path(sys.argv[1]), 1 << 24, writable=False)\n"
        "with catalog.read() as snapshot:\n    print(1, flush=True)\n    sys.stdin.readline()\n"
    )
    with start("-c", hold, root / "catalog") as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        with write_store(root) as store:
            with pytest.raises(StoreError, match="still in"):
                store.forget_session(1)
            other.stdin.close()
            other.wait()
    with write_store(root) as store:
        assert holds(root, b"SECRETNAME") == []
        assert_whole(store)
