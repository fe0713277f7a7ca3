"""Mode exact streams a session through attention, and says what a workspace that holds all of it says."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from livingkv import Memory, Settings
from livingkv.codec import page_bytes
from livingkv.engine import Engine
from livingkv.errors import PageDamaged
from livingkv.hot_window import window_start
from livingkv.models import DualChunk, LoadedModel
from livingkv.settings import PAGE_TOKENS, CodecName, LookBack
from livingkv.store import SessionRow, Store
from livingkv.stored_kv import StoredKV
from livingkv.streaming import StreamedSpace
from livingkv.tiers import TieredPages, budget_for, open_pages
from livingkv.workspace import AttentionState
from tests.store.other_process import run
from tests.tiers.tier_cases import flip_bit
from tests.tiny import tiny_model

WINDOW = 128
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(25)).encode()
QUESTION = tuple(range(40, 53))


@contextmanager
def stored(
    path: Path, model: LoadedModel, codec: CodecName, n_rooms: int
) -> Iterator[tuple[Store, Engine, TieredPages]]:
    """A store with one session of `TEXT`, and its pages through RAM with so many rooms."""
    settings = Settings(window_tokens=256, block_tokens=512, codec=codec)
    with Memory.open(path, model=model, settings=settings) as memory:
        memory.ingest("doors", text=TEXT)
    engine = Engine.of(model, codec)
    size = page_bytes(codec, engine.shape)
    with (
        Store.open(path, mode="read") as store,
        open_pages(store, page_bytes=size, ram_budget_bytes=budget_for(n_rooms, size)) as pages,
    ):
        yield store, engine, pages


def whole(engine: Engine, kv: StoredKV, session: SessionRow) -> AttentionState:
    """The plain way: all of the session in one workspace."""
    space = engine.workspace(session.n_tokens + 64, dual_chunk=True)
    space.push(kv.run(session, 0, session.n_tokens), 0)
    space.next_position = session.n_tokens
    return space


def streamed(engine: Engine, kv: StoredKV, session: SessionRow, block_pages: int) -> AttentionState:
    """What mode exact does."""
    n_cold = window_start(session.n_tokens, LookBack(WINDOW))
    near = engine.workspace(session.n_tokens - n_cold + 64, dual_chunk=True)
    near.push(kv.run(session, n_cold, session.n_tokens), n_cold)
    near.next_position = session.n_tokens
    return StreamedSpace(near, kv.cold(session, n_cold, block_pages=block_pages).layer, n_cold)


def logits(engine: Engine, state: AttentionState) -> Tensor:
    """Of a question and three more tokens, one by one."""
    rows = [engine.runner.logits(torch.tensor(QUESTION), state, keep="all")[0]]
    rows += [engine.runner.logits(torch.tensor([token]), state, keep="all")[0] for token in (60, 61, 62)]
    return torch.cat(rows)


@pytest.mark.parametrize("codec", ["int8", "lossless"])
@pytest.mark.parametrize(
    "rules", [None, DualChunk(330, 27, 2048), pytest.param(DualChunk(512, 128, 2048), marks=pytest.mark.slow)]
)
def test_streamed_is_the_whole(tmp_path: Path, codec: CodecName, rules: DualChunk | None) -> None:
    with stored(tmp_path / "s", tiny_model(dual_chunk=rules), codec, n_rooms=6) as (store, engine, pages):
        session = store.session("default")
        assert session.n_sealed_tokens > 15 * PAGE_TOKENS
        kv = StoredKV(store, engine, pages)
        expected = logits(engine, whole(engine, kv, session))
        for block_pages in (1, 5, 1000):
            got = logits(engine, streamed(engine, kv, session, block_pages))
            assert torch.allclose(got, expected, atol=2e-4), (got - expected).abs().max()
        assert pages.counts().ram.n_in_use == 0
        assert (got[:1] - logits(engine, engine.workspace(64))[:1]).abs().max() > 0.01, "the session is seen"


def test_bf16_streamed_is_near_the_whole(tmp_path: Path) -> None:
    with stored(tmp_path / "s", tiny_model(dtype=torch.bfloat16), "int8", n_rooms=6) as (store, engine, pages):
        session, kv = store.session("default"), StoredKV(store, engine, pages)
        expected = logits(engine, whole(engine, kv, session))
        got = logits(engine, streamed(engine, kv, session, 5))
        assert (got - expected).abs().mean() < 0.05


@pytest.mark.parametrize("n_rooms", [100, 10, 4])
def test_only_what_is_beyond_the_budget_is_read_again(tmp_path: Path, n_rooms: int) -> None:
    """6 scans, 3 layers in each of 2 passes: the first reads every page, the others what RAM could not keep."""
    with stored(tmp_path / "s", tiny_model(), "int8", n_rooms=n_rooms) as (store, engine, pages):
        session, kv = store.session("default"), StoredKV(store, engine, pages)
        state = streamed(engine, kv, session, 3)
        n_cold = window_start(session.n_tokens, LookBack(WINDOW)) // PAGE_TOKENS
        before = pages.counts().lower[0].n_pages
        engine.runner.read(torch.tensor(QUESTION), state)
        engine.runner.read(torch.tensor([60]), state)
        n_read = pages.counts().lower[0].n_pages - before
        assert n_cold <= n_read <= n_cold + 5 * max(0, n_cold - n_rooms)


def test_damage_in_the_middle_is_refused_and_nothing_stays_claimed(tmp_path: Path) -> None:
    with stored(tmp_path / "s", tiny_model(), "int8", n_rooms=6) as (store, engine, pages):
        session, kv = store.session("default"), StoredKV(store, engine, pages)
        state = streamed(engine, kv, session, 4)
        flip_bit(tmp_path / "s", store.locate_pages(session.session_id, [9])[0].location)
        with pytest.raises(PageDamaged, match="page 9"):
            engine.runner.read(torch.tensor(QUESTION), state)
        deadline_s = time.monotonic() + 10.0
        while pages.counts().ram.n_in_use and time.monotonic() < deadline_s:
            time.sleep(0.01)  # what is read ahead comes in
        assert pages.counts().ram.n_in_use == 0
        pages.check()


def test_mode_exact_answers_as_with_a_window_that_holds_all(tmp_path: Path) -> None:
    model = tiny_model()
    small = Settings(window_tokens=128, block_tokens=512, ram_budget_bytes=1 << 17)
    with Memory.open(tmp_path / "s", model=model, settings=small) as memory:
        n_tokens = memory.ingest("doors", text=TEXT).n_tokens
    answers = []
    for settings in (small, Settings(window_tokens=1 << 16)):
        with Memory.open(tmp_path / "s", model=model, settings=settings, read_only=True) as memory:
            answer = memory.ask("What is the code of door 17?", mode="exact", session="default", max_tokens=12)
        assert answer.reused_tokens >= n_tokens > 1000
        answers.append(answer.answer)
    assert answers[0] == answers[1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_session(tmp_path: Path) -> None:
    """A session 8 times as long, 360 MiB of KV when it is decoded, takes no more at once.

    The peak of one run differs from the next by up to a decoded block (12 MiB): how far the reader was ahead.
    """
    block_bytes = 12 << 20
    grown = {}
    for n_pages in (60, 480):
        path = tmp_path / str(n_pages)
        run("-m", "tests.memory.exact_reader", path, str(n_pages))
        result = json.loads(run("-m", "tests.memory.exact_reader", path, OMP_NUM_THREADS="1"))
        grown[n_pages] = result["grown_bytes"]
    assert result["decoded_bytes"] > 350 << 20
    assert grown[480] - grown[60] < 1.5 * block_bytes
    assert grown[480] < 4 * block_bytes
