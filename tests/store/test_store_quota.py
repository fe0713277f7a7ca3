"""Living weights, and a hard disk budget: the coldest KV goes first, text and pinned sessions stay."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from livingkv.errors import InputError, StoreFull
from livingkv.store import Store
from livingkv.store.stats import folder_bytes
from tests.store.store_cases import (
    FINGERPRINT,
    assert_session,
    assert_whole,
    filled_store,
    grown,
    make_append,
    new_session,
    read_store,
    write_store,
)

BUDGET, SEGMENT, PAGE = 4_000_000, 400_000, 40_000


def budgeted(path: Path) -> Store:
    """A store with a budget."""
    return Store.open(
        path, mode="write", fingerprint=FINGERPRINT, create=True, segment_bytes=SEGMENT, catalog_bytes=1 << 24,
        disk_budget_bytes=BUDGET,
    )  # fmt: skip


def test_weights_decay_and_are_recharged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled_store(folder / "store")
    now = time.time()
    with write_store(folder / "store") as store, read_store(folder / "store") as reader:
        assert store.hottest(5) == []
        for ids, later_s in (([1, 2, 2], 0.0), ([1], 0.0), ([3], 100.0)):
            monkeypatch.setattr(time, "time", lambda later_s=later_s: now + later_s)
            store.recharge(ids, half_life_s=100.0)
        found = [(each.sentence_id, each.weight, each.hits) for each in reader.hottest(5, half_life_s=100.0)]
        assert found == [(1, 1.0, 2), (3, 1.0, 1), (2, 0.5, 1)]
        assert [each.sentence_id for each in store.hottest(1, half_life_s=100.0)] == [1]
        monkeypatch.setattr(time, "time", lambda: now - 1000.0)
        assert store.hottest(1, half_life_s=100.0)[0].weight == 2.0
        with pytest.raises(InputError):
            store.recharge([1, 999])
        store.forget_sentences([1])
        assert [each.sentence_id for each in store.hottest(5)] == [2, 3]
        assert_whole(store)


@pytest.mark.slow
def test_three_times_the_budget_is_written(folder: Path) -> None:
    root, rng = folder / "store", random.Random(6)
    peak = 0
    with budgeted(root) as store:
        pinned = new_session(store, "pinned")
        pinned = grown(store, pinned, rng, n_tokens=40, page_bytes=PAGE)
        store.pin(pinned.session_id)
        model = new_session(store)
        hot: list[int] = []
        for number in range(60):
            model = grown(store, model, rng, n_tokens=20, page_bytes=PAGE)
            if number == 2:
                own = [each for each in store.sentences_after(None, 999) if each.session_id == model.session_id]
                hot = sorted({own[0].token_lo // 4, (own[0].token_hi - 1) // 4})
                store.recharge([own[0].sentence_id])
            peak = max(peak, folder_bytes(root))
        assert len(model.pages) * PAGE > 2.9 * BUDGET
        assert peak <= BUDGET + SEGMENT
        model = model.without_pages(frozenset(store.missing_pages(model.session_id)))
        assert 0.5 * len(model.pages) < len(model.missing) < 0.9 * len(model.pages)
        assert not set(hot) & model.missing
        assert max(model.missing) < len(model.pages) - 10
        for each in (pinned, model):
            assert_session(store, each)
        assert_whole(store)
    with budgeted(root) as store:
        append = make_append(model, rng, n_tokens=80, page_bytes=PAGE)
        store.append(append)
        assert folder_bytes(root) <= BUDGET + SEGMENT
        assert_session(store, pinned)
        assert_whole(store)


def test_a_budget_full_of_pinned_sessions(folder: Path) -> None:
    root, rng = folder / "store", random.Random(6)
    with budgeted(root) as store:
        model = new_session(store)
        store.pin(model.session_id)
        with pytest.raises(StoreFull, match="budget"):
            for _ in range(60):
                append = make_append(model, rng, n_tokens=20, page_bytes=PAGE)
                store.append(append)
                model = model.applied(append)
        assert len(model.pages) * PAGE > 0.8 * BUDGET
        assert_session(store, model)
        store.pin(model.session_id, pinned=False)
        store.append(append)
        assert_whole(store)
