"""A clock that goes backwards, or far ahead and back: times are notes, nothing that is durable depends on them."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.store.store_cases import assert_session, assert_whole, filled_store, make_append, rebuild, write_store


def test_every_verb_while_the_clock_goes_backwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder / "store"
    model = filled_store(root, segment_bytes=3000)
    now = time.time()
    passed: list[float] = []

    def backwards() -> float:
        passed.append(now - 1000.0 * len(passed))
        return passed[-1]

    monkeypatch.setattr(time, "time", backwards)
    with write_store(root, segment_bytes=3000) as store:
        written_s = store.session(1).updated_s
        store.recharge([1, 2])
        store.recharge([2])
        assert [(each.sentence_id, each.weight) for each in store.hottest(2)] == [(2, 2.0), (1, 1.0)]
        fork = store.fork(1, "fork")
        append = make_append(model, random.Random(2), n_tokens=9)
        store.append(append)
        model = model.applied(append)
        assert store.session(1).updated_s >= written_s
        store.export_session(1, folder / "exported")
        copy = store.import_session(folder / "exported", name="copy")
        store.rename(fork.session_id, "other")
        store.drop_pages(copy.session_id, [0])
        store.prune(fork.session_id, keep=2)
        store.forget_sentences([store.sentences_after(None, 99)[-1].sentence_id])
        store.defrag(least_dead=0.0)
        assert_session(store, model)
        assert_whole(store)
    assert passed == sorted(passed, reverse=True)
    assert len(passed) > 8
    rebuild(root)
    with write_store(root) as store:
        store.replace_pages(1, {}, tail=model.tail)
        assert_session(store, model)
        assert store.session(1).updated_s >= written_s
        assert_whole(store)


def test_a_weight_from_the_future_neither_grows_nor_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled_store(folder / "store")
    now = time.time()
    with write_store(folder / "store") as store:
        monkeypatch.setattr(time, "time", lambda: now + 1e9)
        store.recharge([1], half_life_s=100.0)
        monkeypatch.setattr(time, "time", lambda: now)
        store.recharge([1, 2], half_life_s=100.0)
        found = {each.sentence_id: each.weight for each in store.hottest(5, half_life_s=100.0)}
        assert found == {1: 2.0, 2: 1.0}
        monkeypatch.setattr(time, "time", lambda: now + 1e9 + 100.0)
        assert [each.sentence_id for each in store.hottest(1, half_life_s=100.0)] == [1]
        assert store.hottest(1, half_life_s=100.0)[0].weight == 1.0
