"""Forks and forgetting: neither affects a relative, and what was forgotten is in no file of the store."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from livingkv.errors import InputError, PageDropped, SentenceForgotten, SessionExists, SessionNotFound, StoreError
from livingkv.store import Append, Disk, SentenceRecord, Step, Store
from tests.store.store_cases import (
    PAGE_TOKENS,
    SessionModel,
    assert_session,
    assert_whole,
    filled_store,
    make_append,
    new_store,
    read_store,
    write_store,
)

SECRET, KEPT = b"QZXJVKWPLMNB", b"HGFDSRTYUIOP"
KV, TAIL = b"<<kv of the secret>>", b"<<tail of the secret>>"


def holds(root: Path, needle: bytes) -> list[str]:
    """Files of a store that hold some bytes."""
    return [str(path) for path in sorted(root.rglob("*")) if path.is_file() and needle in path.read_bytes()]


def append_words(store: Store, model: SessionModel, words: list[bytes], *, source: str, kv: bytes) -> SessionModel:
    """One chunk in which every word is a sentence of one token."""
    first, byte, spans = len(model.ids), len(model.text), []
    for number, word in enumerate(words):
        spans.append(SentenceRecord(byte, byte + len(word), first + number, first + number + 1))
        byte += len(word)
    n_pages = (first + len(words)) // PAGE_TOKENS - len(model.pages)
    append = Append(
        session_id=model.session_id,
        first_token=first,
        token_ids=np.arange(100, 100 + len(words), dtype=np.int32),
        text=b"".join(words),
        sentences=tuple(spans),
        source=source,
        role="document",
        pages=tuple(kv + random.Random(page).randbytes(9000) + kv for page in range(n_pages)),
        tail=(TAIL if kv == KV else kv) if (first + len(words)) % PAGE_TOKENS else b"",
        source_digest=f"digest of {source}",
    )
    store.append(append)
    return model.applied(append)


def secret_store(root: Path) -> tuple[Store, SessionModel]:
    """A store whose session "SECRETNAME" has a secret in sentence 5 (page 1), 9 and 10 (tail) of 11."""
    store = new_store(root, segment_bytes=50_000)
    model = SessionModel(store.create_session("SECRETNAME").session_id, "SECRETNAME")
    model = append_words(store, model, [KEPT, b"b. ", b"c. ", b"d. "], source="kept.txt", kv=b"kept kv")
    model = append_words(store, model, [b"e. ", SECRET, b"f. ", b"g. "], source="SECRETFILE", kv=KV)
    return store, append_words(store, model, [b"h. ", SECRET, b"i. "], source="SECRETFILE", kv=KV)


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
    shutil.rmtree(root / "catalog")
    assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()
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
        other = SessionModel(store.create_session("other").session_id, "other")
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
    shutil.rmtree(root / "catalog")
    Store.rebuild_catalog(root, catalog_bytes=1 << 24)
    with read_store(root) as store:
        assert [row.name for row in store.sessions()] == names
        assert_whole(store)


def copied(model: SessionModel, session_id: int, name: str) -> SessionModel:
    return replace(model, session_id=session_id, name=name)


def test_a_fork_and_its_origin_do_not_affect_each_other(folder: Path) -> None:
    root, rng = folder / "store", random.Random(8)
    one = filled_store(root, segment_bytes=3000)
    with write_store(root, segment_bytes=3000) as store:
        pages = store.stats().bytes_by_part["pages"]
        row = store.fork(1, "two")
        two = copied(one, row.session_id, "two")
        assert store.stats().bytes_by_part["pages"] == pages
        assert_session(store, two)
        assert_whole(store)
        for _ in range(3):
            append = make_append(one, rng, n_tokens=6)
            store.append(append)
            one = one.applied(append)
            append = make_append(two, rng, n_tokens=7)
            store.append(append)
            two = two.applied(append)
        three = copied(two, store.fork(2, "three").session_id, "three")
        store.drop_pages(1, range(4))
        for model in (two, three):
            assert_session(store, model)
        store.replace_pages(1, {page: one.pages[page] for page in range(4)})
        for model in (one, two, three):
            assert_session(store, model)
        assert_whole(store)
        with pytest.raises(SessionExists):
            store.fork(1, "two")
    shutil.rmtree(root / "catalog")
    assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()
    with write_store(root, segment_bytes=3000) as store:
        for model in (one, two, three):
            if store.session(model.name).needs_tail:
                store.replace_pages(model.session_id, {}, tail=model.tail)
            assert_session(store, model)
        assert_whole(store)
        for gone in (1, 2):
            store.forget_session(gone)
            assert_session(store, three)
            assert_whole(store)
    shutil.rmtree(root / "catalog")
    assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()
    with write_store(root) as store:
        store.replace_pages(3, {}, tail=three.tail)
        assert_session(store, three)
        assert_whole(store)
        store.forget_session(3)
        assert store.stats().bytes_by_part["pages"] == 0


def test_a_sentence_forgotten_in_one_stays_in_the_fork(folder: Path) -> None:
    root = folder / "store"
    store, model = secret_store(root)
    with store:
        fork = copied(model, store.fork(1, "fork").session_id, "fork")
        store.forget_sentences([5, 9])
        assert_session(store, fork)
        assert holds(root, SECRET)
        assert_whole(store)
        found = store.sentences_after(None, 99)
        own = [each.sentence_id for each in found if each.session_id == 2 and each.raw == SECRET]
        store.forget_sentences(own)
        assert holds(root, SECRET) == []
        assert_whole(store)
        before = (store.sessions(), store.sentences_after(None, 99))
    shutil.rmtree(root / "catalog")
    assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()
    with read_store(root) as store:
        assert (store.sessions(), store.sentences_after(None, 99)) == before
        assert_whole(store)


def test_families_outlive_a_member_and_the_catalog(folder: Path) -> None:
    """A, its fork B, B's fork C: B is forgotten, the catalog lost. C and A still know that they share."""
    root = folder / "store"
    one = filled_store(root)
    with write_store(root) as store:
        store.fork(1, "b")
        store.fork(2, "c")
        store.forget_session(2)
    shutil.rmtree(root / "catalog")
    assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()
    with write_store(root) as store:
        store.replace_pages(1, {}, tail=one.tail)
        store.forget_session(3)
        assert_session(store, one)
        assert_whole(store)


def test_renaming(folder: Path) -> None:
    model = filled_store(folder / "store")
    with write_store(folder / "store") as store:
        store.create_session("other")
        assert store.rename(1, "new").name == "new"
        assert store.rename(1, "new").name == "new"
        assert_session(store, copied(model, 1, "new"))
        for wrong in ("other", ""):
            with pytest.raises((SessionExists, InputError)):
                store.rename(1, wrong)
        with pytest.raises(SessionNotFound):
            store.session("main")
        assert_whole(store)


class DiesAt(Disk):
    """Raises at one step, once."""

    step: Step | None = None

    def reached(self, step: Step) -> None:
        if step is self.step:
            self.step = None
            raise KeyboardInterrupt


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


def test_a_reader_with_an_old_snapshot_delays_the_receipt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livingkv.store.committing._READERS_WAIT_S", 0.05)
    root = folder / "store"
    secret_store(root)[0].close()
    hold = (
        "import sys\nfrom pathlib import Path\nfrom livingkv.store.catalog import Catalog\n"
        "catalog = Catalog(Path(sys.argv[1]), 1 << 24, writable=False)\n"
        "with catalog.read() as snapshot:\n    print(1, flush=True)\n    sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", hold, str(root / "catalog")]
    repository = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=repository) as other:
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
        assert disk.step is None or (what == "sentence" and step is Step.ERASED)  # no record is left to erase
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


OLD, NEW = b"NAMEOFBEFORE", b"NAMEOFTODAY"


def renamed_store(root: Path) -> tuple[SessionModel, SessionModel]:
    """A store whose session was renamed twice, and forked before; then it was appended to."""
    rng = random.Random(3)
    with new_store(root, segment_bytes=3000) as store:
        model = SessionModel(store.create_session(OLD.decode()).session_id, OLD.decode())
        for _ in range(4):
            append = make_append(model, rng, n_tokens=9)
            store.append(append)
            model = model.applied(append)
        fork = copied(model, store.fork(1, "fork").session_id, "fork")
        store.rename(1, f"{OLD.decode()} too")
        store.rename(1, NEW.decode())
        append = make_append(model, rng, n_tokens=9)
        store.append(append)
    return copied(model.applied(append), 1, NEW.decode()), fork


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
    shutil.rmtree(root / "catalog")
    assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()
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
        shutil.rmtree(root / "catalog")
        assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()
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
