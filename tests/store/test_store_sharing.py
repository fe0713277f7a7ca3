"""One writer, many readers: locks, threads, forks, and an LMDB environment that is opened once and grows."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import threading
from pathlib import Path

import pytest

from livingkv.errors import StoreError, StoreLocked
from livingkv.store import Store
from livingkv.store.catalog import Catalog, Changes
from livingkv.store.making import CATALOG
from tests.store.other_process import run, start
from tests.store.store_cases import (
    assert_session,
    assert_whole,
    filled_store,
    grown,
    new_session,
    new_store,
    read_store,
    write_store,
)

HOLD = """
import sys, time
from pathlib import Path
from tests.store.store_cases import write_store
store = write_store(Path(sys.argv[1]))
print("open", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_second_writer_is_refused_and_a_dead_one_forgotten(folder: Path) -> None:
    model = filled_store(folder / "store")
    with start("-c", HOLD, folder / "store") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        for open_store in (write_store, new_store):
            with pytest.raises(StoreLocked, match=f"process {holder.pid} writes to it"):
                open_store(folder / "store")
        with read_store(folder / "store") as store:
            assert_session(store, model)
        assert json.loads((folder / "store" / "lock").read_text())["pid"] == holder.pid
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with write_store(folder / "store") as store:
        assert_session(store, model)


def test_two_writers_in_one_process_are_refused(folder: Path) -> None:
    filled_store(folder / "store")
    with write_store(folder / "store"):
        with pytest.raises(StoreLocked, match="this process"):
            write_store(folder / "store")
        (folder / "link").symlink_to(folder / "store")
        with pytest.raises(StoreLocked, match="this process"):
            write_store(folder / "link")
        with read_store(folder / "link") as store:
            store.sessions()
    write_store(folder / "link").close()


def _in_child(store: Store, path: Path, answers: multiprocessing.connection.Connection) -> None:
    result = []
    for use in (store.sessions, lambda: store.read_pages(1, [0]), lambda: store.create_session("child")):
        try:
            use()
            result.append("no error")
        except StoreError as error:
            result.append(str(error))
    store.close()
    with read_store(path) as own:
        result.append(str(len(own.sessions())))
    answers.send(result)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_may_not_use_the_parents_store(folder: Path) -> None:
    model = filled_store(folder / "store")
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    with write_store(folder / "store") as store:
        child = context.Process(target=_in_child, args=(store, folder / "store", sending))
        child.start()
        *errors, n_sessions = receiving.recv()
        child.join()
        assert all("before a fork" in error for error in errors), errors
        assert n_sessions == "1"
        assert_session(store, grown(store, model, random.Random(1)))
    write_store(folder / "store").close()


def _open_in_child(path: Path, answers: multiprocessing.connection.Connection) -> None:
    try:
        read_store(path).close()
        answers.send("no error")
    except StoreError as error:
        answers.send(str(error))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_forked_inside_a_transaction_may_not_open_the_store(folder: Path) -> None:
    filled_store(folder / "store")
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    catalog = Catalog(folder / "store" / CATALOG, 1 << 24, writable=False)
    with catalog.read() as snapshot:
        child = context.Process(target=_open_in_child, args=(folder / "store", sending))
        child.start()
        assert "start it by spawn" in receiving.recv()
        child.join()
        assert snapshot.session(1) is not None
    catalog.close()


def test_threads_read_while_one_appends(folder: Path) -> None:
    model = filled_store(folder / "store", segment_bytes=3000)
    known = model
    failures: list[BaseException] = []
    is_done = threading.Event()

    def read(store: Store) -> None:
        rng = random.Random(threading.get_ident())
        try:
            while not is_done.is_set():
                current = known
                page = rng.randrange(len(current.pages))
                assert store.read_pages(1, [page, 0]) == [current.pages[page], current.pages[0]]
                assert store.text(1, 0, len(current.text)) == current.text
                assert store.token_ids(1, 3, len(current.ids)).tolist() == current.ids[3:]
                number = rng.randrange(len(current.sentences))
                assert store.sentence(number).raw == current.sentences[number][2]
        except BaseException as error:  # handed to the test's thread
            failures.append(error)

    rng = random.Random(3)
    with write_store(folder / "store", segment_bytes=3000) as writer, read_store(folder / "store") as reader:
        threads = [threading.Thread(target=read, args=(store,)) for store in (writer, reader, reader)]
        for thread in threads:
            thread.start()
        for _ in range(40):
            known = grown(writer, known, rng, n_tokens=9)
        is_done.set()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert_session(reader, known)


@pytest.mark.slow
def test_the_catalogs_map_grows_under_readers(folder: Path) -> None:
    model = filled_store(folder / "store")
    rng = random.Random(3)
    with (
        start("-c", READ_WHEN_TOLD, folder / "store") as other,
        Store.open(folder / "store", mode="write", catalog_bytes=1 << 18) as writer,
        Store.open(folder / "store", mode="read", catalog_bytes=1 << 18) as reader,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == f"{len(model.ids)}\n"
        for _ in range(8):
            model = grown(writer, model, rng, n_tokens=11, page_bytes=30_000)
            assert reader.read_tail(1)[1] == model.tail
        assert (folder / "store" / "catalog" / "data.mdb").stat().st_size > 1 << 18
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == f"{len(model.ids)}\n"
        assert_session(reader, model)
        assert_whole(writer)


LITTLE_ADDRESS_SPACE = """
import resource, sys
from pathlib import Path
from livingkv.store import Store
resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
with Store.open(Path(sys.argv[1]), mode="write") as store:
    store.create_session("other")
    assert store.check().ok
"""


@pytest.mark.slow
def test_a_process_with_little_address_space_uses_a_smaller_map(folder: Path) -> None:
    filled_store(folder / "store")
    run("-c", LITTLE_ADDRESS_SPACE, folder / "store")


READ_WHEN_TOLD = """
import sys
from pathlib import Path
from livingkv.store import Store
with Store.open(Path(sys.argv[1]), mode="read", catalog_bytes=1 << 18) as store:
    for _ in range(2):
        print(store.session("main").n_tokens, flush=True)
        sys.stdin.readline()
"""


def test_the_catalog_does_not_grow_with_rewritten_tails(folder: Path) -> None:
    rng = random.Random(9)
    with new_store(folder / "store") as store:
        model = new_session(store)
        sizes = []
        for _ in range(150):
            model = grown(store, model, rng, n_tokens=1, page_bytes=40_000)  # tails of 0 to 120,000 bytes
            sizes.append((folder / "store" / "catalog" / "data.mdb").stat().st_size)
        assert store.read_tail(1)[1] == model.tail
    assert sizes[-1] < 5 * 120_000


def test_unchanged_pieces_of_a_tail_are_not_rewritten(folder: Path) -> None:
    new_store(folder / "store").close()
    catalog = Catalog(folder / "store" / CATALOG, 1 << 24, writable=True)
    tail = random.Random(1).randbytes(200_000)

    def put(value: bytes) -> None:
        def apply(changes: Changes) -> None:
            changes.put_tail(1, value)

        catalog.commit(apply, before_commit=lambda: None)

    for value in (tail, tail + b"more", tail[:100_000], b"", tail):
        put(value)
        with catalog.read() as snapshot:
            assert snapshot.tail(1) == value
    before = (folder / "store" / CATALOG / "data.mdb").stat().st_size
    for number in range(20):
        put(tail + bytes(number))
    assert (folder / "store" / CATALOG / "data.mdb").stat().st_size - before < 200_000
    catalog.close()
