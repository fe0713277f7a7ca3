"""The hot window: a session restored from pages and tail continues bit for bit like one that never stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from livingkv.batched_decode import DecodeStep
from livingkv.engine import Engine
from livingkv.hot_window import HotWindow, window_start
from livingkv.models import DualChunk
from livingkv.settings import CodecName, Settings
from livingkv.workspace import Workspace
from tests.core.test_exactness import tokens
from tests.tiny import tiny_model

SETTINGS = Settings(window_tokens=128, block_tokens=64)
N_SINKS = 8


def engine_of(codec: CodecName, dual_chunk: DualChunk | None = None, dtype: torch.dtype = torch.float32) -> Engine:
    """A tiny engine."""
    return Engine.of(tiny_model("qwen2", dtype=dtype, dual_chunk=dual_chunk), codec)


def stored_state(hot: HotWindow, pages: list[bytes]) -> tuple[list[bytes], bytes]:
    """All pages so far and the tail, as a store would hold them."""
    pages.extend(hot.take_sealed())
    return pages, hot.tail()


def restored(engine: Engine, pages: list[bytes], tail: bytes, n_tokens: int) -> HotWindow:
    """A fresh hot window from what a store holds."""
    hot = engine.hot_window(SETTINGS, N_SINKS)
    first = window_start(n_tokens, SETTINGS.conversation) // 64
    hot.restore(pages[first:], first, pages[0] if pages and first else None, tail)
    return hot


def greedy(engine: Engine, hot: HotWindow, token: Tensor, n: int) -> Iterator[Tensor]:
    """Logits of `n` greedy steps that begin with `token`."""
    for _ in range(n):
        logits = engine.runner.logits(token, hot)[0, -1]
        yield logits
        token = logits.argmax()[None]


@pytest.mark.parametrize("codec", ["int8", pytest.param("lossless", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 200, 519])
def test_restored_continues_bit_for_bit(codec: CodecName, dtype: torch.dtype, n: int) -> None:
    engine = engine_of(codec, dtype=dtype)
    hot = engine.hot_window(SETTINGS, N_SINKS)
    engine.runner.read(tokens(n), hot)
    pages, tail = stored_state(hot, [])
    other = restored(engine, pages, tail, n)
    assert other.n_tokens == n and other.n_sealed == n // 64 * 64
    for one, two in zip(greedy(engine, hot, tokens(1), 80), greedy(engine, other, tokens(1), 80), strict=True):
        assert torch.equal(one, two)


def test_restored_after_restored_and_long_blocks() -> None:
    engine = engine_of("int8")
    hot = engine.hot_window(SETTINGS, N_SINKS)
    pages: list[bytes] = []
    for part in (90, 300, 5, 700):
        engine.runner.read(tokens(part, seed=part), hot)
        pages, tail = stored_state(hot, pages)
        other = restored(engine, pages, tail, hot.n_tokens)
        ids = tokens(70, seed=part + 1)
        want = engine.runner.logits(ids, hot.branch(200), "all")
        assert torch.equal(engine.runner.logits(ids, other.branch(200), "all"), want)


def test_a_sealed_page_is_attended_as_stored() -> None:
    engine = engine_of("int8")
    hot = engine.hot_window(SETTINGS, N_SINKS)
    engine.runner.read(tokens(128), hot)
    decoded = engine.codec.decode(list(hot.sealed), [0, 64], torch.device("cpu"))
    space = hot.workspace
    assert torch.equal(space.view(space.end - 128, space.end).keys, decoded.keys)
    assert torch.equal(space.view(space.end - 128, space.end).values, decoded.values)


def test_a_branch_leaves_the_session_alone() -> None:
    engine = engine_of("int8")
    hot = engine.hot_window(SETTINGS, N_SINKS)
    engine.runner.read(tokens(300), hot)
    before = (hot.tail(), hot.n_tokens, list(hot.sealed))
    engine.runner.read(tokens(40, seed=3), hot.branch(64))
    assert (hot.tail(), hot.n_tokens, list(hot.sealed)) == before


def _slots(space: Workspace) -> list[Tensor]:
    kv = space.view(space.start, space.end)
    return [kv.keys, kv.values, space.positions[space.start : space.end]]


@pytest.mark.parametrize("n", [40, 300])
def test_a_branch_shares_memory_until_the_session_goes_on(n: int) -> None:
    engine = engine_of("int8", dtype=torch.bfloat16)
    hot, alone = engine.hot_window(SETTINGS, N_SINKS), engine.hot_window(SETTINGS, N_SINKS)
    for each in (hot, alone):
        engine.runner.read(tokens(n), each)
    one = hot.branch(64)
    engine.runner.read(tokens(20, seed=3), one)
    known = [part.clone() for part in _slots(one)]
    assert one.keys.data_ptr() == hot.workspace.keys.data_ptr()
    two = hot.branch(64)
    assert one.keys.data_ptr() != hot.workspace.keys.data_ptr() == two.keys.data_ptr()
    for step in range(3):  # the session and its branches, by turns
        want = engine.runner.logits(tokens(50, seed=step), alone, "all")
        assert torch.equal(engine.runner.logits(tokens(50, seed=step), hot, "all"), want)
        assert all(map(torch.equal, _slots(one), known))
    engine.runner.read(tokens(20, seed=3), two)
    assert all(map(torch.equal, _slots(two), known))
    assert two.keys.data_ptr() != hot.workspace.keys.data_ptr()
    assert (hot.tail(), hot.take_sealed()) == (alone.tail(), alone.take_sealed())


def test_a_branch_and_its_session_in_one_pass() -> None:
    engine = engine_of("int8")
    hot = engine.hot_window(SETTINGS, N_SINKS)
    engine.runner.read(tokens(100), hot)
    want = [engine.runner.logits(tokens(1, seed=seed), hot.branch(1))[0, -1] for seed in (1, 2)]
    branch = hot.branch(1)
    found = engine.runner.logits_of(
        [DecodeStep(int(tokens(1, seed=1)), branch), DecodeStep(int(tokens(1, seed=2)), hot)]
    )
    for one, two in zip(found, want, strict=True):
        assert isinstance(one, Tensor) and torch.allclose(one[0, -1], two, atol=1e-4)


def test_a_branch_longer_than_the_room_behind_the_session_has_memory_of_its_own() -> None:
    engine = engine_of("int8")
    hot = engine.hot_window(SETTINGS, N_SINKS)
    engine.runner.read(tokens(100), hot)
    branch = hot.branch(1000)
    assert branch.room == 1000 and branch.keys.data_ptr() != hot.workspace.keys.data_ptr()


def test_device_memory_does_not_grow_with_the_session() -> None:
    engine = engine_of("int8")
    hot = engine.hot_window(SETTINGS, N_SINKS)
    sizes = set()
    for seed in range(12):
        engine.runner.read(tokens(150, seed=seed), hot)
        hot.take_sealed()
        space = hot.workspace
        sizes.add((space.capacity, space.keys.numel()))
        assert space.n_attended <= SETTINGS.window_tokens + 64 + 64 + N_SINKS
    assert len(sizes) == 1


def test_sinks_sit_just_before_the_window() -> None:
    engine = engine_of("lossless")
    hot = engine.hot_window(SETTINGS, N_SINKS)
    engine.runner.read(tokens(1000), hot)
    engine.runner.read(tokens(1), hot)
    space = hot.workspace
    start = window_start(1000, SETTINGS.conversation)
    positions = space.positions[space.start : space.end]
    assert positions.tolist() == list(range(start - N_SINKS, 1001))


def test_dual_chunk_session_longer_than_chunks_restores_bit_for_bit() -> None:
    engine = engine_of("int8", DualChunk(1024, 512, 2048))
    hot = engine.hot_window(SETTINGS, N_SINKS)
    engine.runner.read(tokens(1300), hot)
    pages, tail = stored_state(hot, [])
    other = restored(engine, pages, tail, 1300)
    for one, two in zip(greedy(engine, hot, tokens(1), 20), greedy(engine, other, tokens(1), 20), strict=True):
        assert torch.equal(one, two)


def test_windowed_dual_chunk_equals_absolute_while_distances_are_short() -> None:
    """A window within local_size never sees a clamped distance, so the two policies agree to rounding."""
    ids = tokens(1300)
    plain, chunked = engine_of("lossless"), engine_of("lossless", DualChunk(1024, 512, 2048))
    out = []
    for engine in (plain, chunked):
        hot = engine.hot_window(SETTINGS, N_SINKS)
        out.append(engine.runner.logits(ids, hot, "all")[0])
    assert (out[0] - out[1]).abs().max() <= 1e-3


@pytest.mark.parametrize(("n", "back"), [(10, 3), (70, 6), (200, 8), (519, 7)])
def test_rewound_it_goes_on_as_if_the_tokens_had_not_been_read(n: int, back: int) -> None:
    engine = engine_of("int8")
    hot, plain = (engine.hot_window(SETTINGS, N_SINKS) for _ in range(2))
    ids = tokens(n)
    for part in (ids[: n - back], ids[n - back :]):
        engine.runner.read(part, hot)
    engine.runner.read(ids[: n - back], plain)
    hot.rewind(n - back)
    assert (hot.n_tokens, hot.take_sealed(), hot.tail()) == (plain.n_tokens, plain.take_sealed(), plain.tail())
    for one, two in zip(greedy(engine, hot, tokens(1), 70), greedy(engine, plain, tokens(1), 70), strict=True):
        assert torch.equal(one, two)
