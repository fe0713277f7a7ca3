"""Many threads reading, evicting, pinning and dropping at once: every page right, damage never kept, closing safe."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from livingkv.errors import InputError, LivingKVError, PageDamaged, StoreError
from livingkv.tiers import TieredPages, budget_for, open_pages
from tests.store.store_cases import SessionModel, make_append, read_store, write_store
from tests.tiers.tier_cases import damage_page, paged_store

pytestmark = pytest.mark.slow  # seconds in all: other processes, many stores

PAGE_BYTES = 20_010
N_PAGES = 60
N_THREADS = 64


def run_threads(work: Callable[[int], None], n_threads: int = N_THREADS) -> None:
    """Run `work(number)` in every thread, and raise what the first one raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # the edge of a thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a reader hangs"
    if errors:
        raise errors[0]


def busy(pages: TieredPages, model: SessionModel, damaged: set[int], rng: random.Random, n_steps: int) -> None:
    """Random reads, pins and drops, each page compared with what was stored."""
    sums = {page: xxh3_64_intdigest(data) for page, data in enumerate(model.pages)}
    for _ in range(n_steps):
        first = rng.randrange(N_PAGES - 4)
        asked = range(first, first + rng.randint(1, 4))
        try:
            match rng.randrange(6):
                case 0 | 1:
                    with pages.lease(model.session_id, asked) as views:
                        assert [xxh3_64_intdigest(view) for view in views] == [sums[page] for page in asked]
                        assert not damaged & set(asked)
                case 2 | 3:
                    for page, view in pages.stream(model.session_id, asked):
                        assert xxh3_64_intdigest(view) == sums[page]
                        assert page not in damaged
                case 4:
                    pages.prefetch(model.session_id, asked)
                case _:
                    pages.pin(model.session_id, [first])
                    pages.unpin(model.session_id, [first])
        except PageDamaged as error:
            assert error.page in damaged
        except InputError as error:
            assert error.field == "pages to pin"
        if rng.random() < 0.02:
            pages.drop_session(model.session_id)


def test_64_threads_never_see_a_wrong_page(folder: Path) -> None:
    model = paged_store(folder, N_PAGES, page_bytes=PAGE_BYTES)
    damaged = {7, 31}
    with read_store(folder) as store:
        for page in damaged:
            damage_page(folder, store, model, page)
        # 16 rooms for 64 threads: they wait for one another all the time
        with open_pages(store, page_bytes=PAGE_BYTES, ram_budget_bytes=budget_for(16, PAGE_BYTES)) as pages:
            run_threads(lambda number: busy(pages, model, damaged, random.Random(number), 60))
            assert not damaged & {key.number for key in pages._ram.held()}
            pages._reading.close()  # what was begun and not asked for ends
            pages.check()
            counts = pages.counts()
            assert counts.ram.n_in_use == 0
            assert counts.ram.n_evicted > 0
            assert counts.lower[0].n_damaged > 0


def test_closing_under_readers_is_an_error_and_never_a_wrong_page(folder: Path) -> None:
    model = paged_store(folder, N_PAGES, page_bytes=PAGE_BYTES)
    for seed in range(3):
        with read_store(folder) as store:
            pages = open_pages(store, page_bytes=PAGE_BYTES, ram_budget_bytes=budget_for(12, PAGE_BYTES))

            def work(number: int, pages: TieredPages = pages, seed: int = seed) -> None:
                if number == 0:
                    threading.Event().wait(0.05)
                    pages.close()
                    return
                rng = random.Random(number + 100 * seed)
                try:
                    while True:
                        busy(pages, model, set(), rng, 1)
                except LivingKVError as error:
                    assert type(error) is StoreError
                    assert "closed" in str(error)

            run_threads(work, 16)


def test_pages_committed_meanwhile_are_read(folder: Path) -> None:
    model = paged_store(folder, 8, page_bytes=PAGE_BYTES)
    with write_store(folder) as store:
        pages = open_pages(store, page_bytes=PAGE_BYTES, ram_budget_bytes=budget_for(8, PAGE_BYTES))
        models = [model]
        writing = threading.Event()
        writing.set()

        def work(number: int) -> None:
            rng = random.Random(number)
            if number == 0:
                for _ in range(15):
                    append = make_append(models[-1], rng, n_tokens=8, page_bytes=PAGE_BYTES)
                    store.append(append)
                    models.append(models[-1].applied(append))
                writing.clear()
            while number and writing.is_set():
                current = models[-1]
                asked = rng.sample(range(len(current.pages)), 2)
                with pages.lease(model.session_id, asked) as views:
                    assert [bytes(view) for view in views] == [current.pages[page] for page in asked]

        run_threads(work, 8)
        pages.close()


@pytest.mark.parametrize("n_rooms", [4, 5])
def test_smallest_budgets_do_not_lock_up(folder: Path, n_rooms: int) -> None:
    model = paged_store(folder, N_PAGES, page_bytes=PAGE_BYTES)
    with (
        read_store(folder) as store,
        open_pages(store, page_bytes=PAGE_BYTES, ram_budget_bytes=budget_for(n_rooms, PAGE_BYTES)) as pages,
    ):

        def work(number: int) -> None:
            first = number % 20
            asked = range(first, first + 30)
            assert [bytes(view) for _, view in pages.stream(1, asked)] == model.pages[first : first + 30]

        run_threads(work, 16)
        pages.check()
