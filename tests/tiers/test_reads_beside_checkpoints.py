"""Threads read while a checkpoint of real size is written: none waits longer than a second for it."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep

import pytest

from livingkv.store import Store
from livingkv.tiers import budget_for, open_pages
from tests.store.store_cases import PAGE_TOKENS, SessionModel, make_append, new_store

pytestmark = pytest.mark.slow

PAGE_BYTES = 405_520
"""A page of the default model."""
CHECKPOINT_PAGES = 64
N_CHECKPOINTS = 8
LONGEST_S = 1.0


def worst_read_s(store: Store, session_id: int, meanwhile: Callable[[], None]) -> tuple[int, float]:
    """How many reads of pages, text and sentences a thread did while `meanwhile` ran, and how long the longest took."""
    done, seconds, failed = threading.Event(), [0.0], list[Exception]()
    row, rng = store.session(session_id), random.Random(4)

    def read() -> None:
        try:
            with open_pages(
                store, page_bytes=PAGE_BYTES, ram_budget_bytes=budget_for(40, PAGE_BYTES)
            ) as pages:  # less than there is: most reads go to the disk
                while not done.is_set():
                    first = rng.randrange(CHECKPOINT_PAGES - 16)
                    started = perf_counter()
                    for _ in pages.stream(session_id, range(first, first + 16)):
                        pass
                    store.text(session_id, 0, row.n_bytes)
                    store.sentences_after(None, 5)
                    seconds.append(perf_counter() - started)
                    sleep(0.005)
        except Exception as error:  # the edge of a thread: the test tells
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        meanwhile()
    finally:
        done.set()
        thread.join()
    assert not failed
    return len(seconds) - 1, max(seconds)


def test_a_read_never_waits_a_second_for_a_checkpoint(folder: Path) -> None:
    rng = random.Random(8)
    with new_store(folder / "store", segment_bytes=1 << 28) as store:
        model = SessionModel(store.create_session("main").session_id, "main")

        def checkpoints(n: int) -> None:
            nonlocal model
            for _ in range(n):
                append = make_append(model, rng, n_tokens=CHECKPOINT_PAGES * PAGE_TOKENS, page_bytes=PAGE_BYTES)
                store.append(append)
                model = model.applied(append)

        def plain_writes() -> None:
            with (folder / "plain").open("wb") as file:
                for _ in range(N_CHECKPOINTS):
                    file.write(rng.randbytes(CHECKPOINT_PAGES * PAGE_BYTES))
                    file.flush()
                    os.fsync(file.fileno())

        checkpoints(1)
        _, beside_plain = worst_read_s(store, model.session_id, plain_writes)
        n_reads, beside_checkpoints = worst_read_s(store, model.session_id, lambda: checkpoints(N_CHECKPOINTS))
    assert n_reads > N_CHECKPOINTS, "there was reading between and beside checkpoints"
    assert beside_checkpoints < LONGEST_S + beside_plain, "a busy machine makes plain writes wait as well"
