"""Several cells in one pass give the keys, values and states of one cell a pass, wherever passes are cut."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from livingkv.codec import KV
from livingkv.engine import Engine
from livingkv.hot_window import HotWindow, window_start
from livingkv.models import DualChunk
from livingkv.settings import CodecName, LookBack, Settings
from tests.core.test_exactness import tokens
from tests.tiny import FAMILIES, tiny_model

SPAN, GRID, N_SINKS = 64, 128, 20
ONE_CELL = 128


class Read(NamedTuple):
    """What was made of a text: last hidden states, all pages, the tail, and the tokens in each pass."""

    hidden: Tensor
    pages: list[bytes]
    tail: bytes
    passes: list[int]


def settings(block: int | None) -> Settings:
    """A short span, so that short texts have many cells."""
    return Settings(window_tokens=512, span_tokens=SPAN, block_tokens=block)


def window(engine: Engine, block: int | None, n_sinks: int = N_SINKS) -> HotWindow:
    """An empty hot window for a document."""
    return engine.hot_window(settings(block), n_sinks, settings(block).document)


class Counted:
    """A hot window that notes how many tokens each pass over it has."""

    def __init__(self, hot: HotWindow) -> None:
        self._hot = hot
        self.passes: list[int] = []
        self.attend, self.finish = hot.attend, hot.finish

    @property
    def room(self) -> int:
        """See AttentionState."""
        return self._hot.room

    def begin(self, n_tokens: int) -> None:
        """See AttentionState."""
        self.passes.append(n_tokens)
        self._hot.begin(n_tokens)


def read(engine: Engine, hot: HotWindow, ids: Tensor, cuts: tuple[int, ...] = ()) -> Read:
    """Read `ids` with a commit at each of `cuts`."""
    counted = Counted(hot)
    pages: list[bytes] = []
    hidden = []
    for lo, hi in zip((0, *cuts), (*cuts, len(ids)), strict=True):
        hidden.append(engine.runner.hidden(ids[lo:hi].to(engine.model.device), counted)[0])
        pages.extend(hot.take_sealed())
    return Read(torch.cat(hidden), pages, hot.tail(), counted.passes)


def kv_of(engine: Engine, made: Read) -> KV:
    """The stored pages, decoded."""
    firsts = range(0, len(made.pages) * 64, 64)
    return engine.codec.decode(made.pages, firsts, engine.model.device)


def largest_difference(engine: Engine, one: Read, two: Read) -> float:
    """Over stored keys and values."""
    pairs = zip(kv_of(engine, one), kv_of(engine, two), strict=True)
    return max(float((a.float() - b.float()).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [129, 256, 257, 300, 1000])
def test_many_cells_equal_one_cell_a_pass(family: str, n: int) -> None:
    engine, ids = Engine.of(tiny_model(family), "lossless"), tokens(n)
    want = read(engine, window(engine, ONE_CELL), ids)
    got = read(engine, window(engine, 4096), ids)
    assert max(want.passes) == GRID and len(got.passes) == 2
    assert torch.allclose(got.hidden, want.hidden, atol=1e-4)
    assert largest_difference(engine, got, want) < 1e-4


@pytest.mark.parametrize("n_sinks", [1, 4, 63, 64])
@pytest.mark.parametrize("span", [64, 192])
def test_with_any_number_of_sinks_and_any_span(n_sinks: int, span: int) -> None:
    engine, ids = Engine.of(tiny_model("qwen2"), "lossless"), tokens(1500, seed=n_sinks)
    made = []
    for block in (64 * 6, 4096):
        wish = Settings(window_tokens=512, span_tokens=span, block_tokens=block)
        made.append(read(engine, engine.hot_window(wish, n_sinks, LookBack(span, 2 * span)), ids))
    assert torch.allclose(made[1].hidden, made[0].hidden, atol=1e-4)
    assert largest_difference(engine, *made) < 1e-4


@pytest.mark.parametrize("cuts", [(200,), (130, 131, 700), (64, 448), (255,), (256, 384), (1, 2, 3)])
def test_a_pass_may_begin_and_end_in_the_middle_of_a_cell(cuts: tuple[int, ...]) -> None:
    engine, ids = Engine.of(tiny_model("llama"), "lossless"), tokens(900)
    want = read(engine, window(engine, ONE_CELL), ids, cuts)
    got = read(engine, window(engine, 512), ids, cuts)
    assert len(got.passes) < len(want.passes)
    assert torch.allclose(got.hidden, want.hidden, atol=1e-4)
    assert largest_difference(engine, got, want) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_span_is_attended_as_it_will_be_stored(dtype: torch.dtype) -> None:
    """With 8 bits the difference between raw and stored KV is far above rounding, so it would be seen here."""
    engine, ids = Engine.of(tiny_model("qwen2", dtype=dtype), "int8"), tokens(1000)
    cuts = (333, 700)
    want = read(engine, window(engine, ONE_CELL), ids, cuts)
    got = read(engine, window(engine, 4096), ids, cuts)
    assert len(got.passes) < len(want.passes)
    close = 1e-4 if dtype == torch.float32 else 0.02
    assert (got.hidden.float() - want.hidden.float()).abs().mean() < close
    apart = [(a.float() - b.float()).abs() for a, b in zip(kv_of(engine, got), kv_of(engine, want), strict=True)]
    assert max(float(each.mean()) for each in apart) < close


def test_without_the_codec_the_difference_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ids = Engine.of(tiny_model("qwen2"), "int8"), tokens(1000)
    want = read(engine, window(engine, ONE_CELL), ids)
    hot = window(engine, 4096)
    monkeypatch.setattr(type(engine.codec), "stored", lambda codec, kv, by, first_layer=0: kv)
    got = read(engine, hot, ids)
    assert (got.hidden - want.hidden).abs().mean() > 1e-3


@pytest.mark.parametrize("codec", ["int8", "lossless"])
@pytest.mark.parametrize("n", [300, 576, 1000])
def test_restored_after_many_cells_continues_bit_for_bit(codec: CodecName, n: int) -> None:
    engine, ids = Engine.of(tiny_model("qwen2", dtype=torch.bfloat16), codec), tokens(n)
    hot = window(engine, 4096)
    made = read(engine, hot, ids)
    other = window(engine, 4096)
    first = window_start(n, hot.look) // 64
    other.restore(made.pages[first:], first, made.pages[0] if first else None, made.tail)
    more = tokens(700, seed=5)
    on, again = read(engine, hot, more), read(engine, other, more)
    assert torch.equal(on.hidden, again.hidden) and on.pages == again.pages and on.tail == again.tail
    assert max(on.passes) > GRID


def test_memory_is_bounded_by_the_block() -> None:
    engine = Engine.of(tiny_model("qwen2"), "int8")
    hot = window(engine, 512)
    sizes = set()
    for seed, n in enumerate((900, 37, 512, 1, 1200, 129)):
        read(engine, hot, tokens(n, seed=seed))
        sizes.add(hot.workspace.capacity)
    assert sizes == {128 + SPAN + 512 + 2 * GRID}


def test_cells_that_look_over_a_border_of_dual_chunks_are_passes_of_their_own() -> None:
    rules = DualChunk(768, 256, 1024)  # borders at multiples of 512
    engine, plain = (Engine.of(tiny_model("qwen2", dual_chunk=each), "lossless") for each in (rules, None))
    ids = tokens(1000)
    got, want = (read(engine, window(engine, block), ids) for block in (256, ONE_CELL))
    assert got.passes == [128, 256, 128, 128, 256, 104]
    assert torch.allclose(got.hidden, want.hidden, atol=1e-4)
    without = read(plain, window(plain, 256), ids[:384])
    assert torch.allclose(got.hidden[:384], without.hidden, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_past_the_original_context_every_cell_has_the_temperature_of_its_end(dtype: torch.dtype) -> None:
    rules = DualChunk(1280, 256, 1300)  # borders at multiples of 1,024
    engine = Engine.of(tiny_model("qwen2", dtype=dtype, dual_chunk=rules), "lossless")
    ids, cuts = tokens(3000), (1500, 2222)
    got, want = (read(engine, window(engine, block), ids, cuts) for block in (512, ONE_CELL))
    assert len(got.passes) < 0.6 * len(want.passes)
    close = 1e-4 if dtype == torch.float32 else 0.02
    assert (got.hidden.float() - want.hidden.float()).abs().mean() < close
    if dtype == torch.float32:
        assert torch.allclose(got.hidden, want.hidden, atol=1e-4)
        still = Engine.of(tiny_model("qwen2", dual_chunk=DualChunk(1280, 256, 1280)), "lossless")
        assert (read(still, window(still, 512), ids, cuts).hidden - got.hidden).abs().max() > 1e-4


def test_the_block_is_chosen_by_device() -> None:
    chosen, default = Settings(block_tokens=1024), Settings()
    for look in (default.document, default.conversation):
        assert [chosen.pass_tokens(look, on_gpu=on_gpu) for on_gpu in (True, False)] == [1024, 1024]
    assert default.pass_tokens(default.document, on_gpu=True) == 8192
    assert default.pass_tokens(default.document, on_gpu=False) == 256
    assert [default.pass_tokens(default.conversation, on_gpu=on_gpu) for on_gpu in (True, False)] == [512, 512]


@pytest.mark.parametrize(("block", "expected"), [(256, 416), (8192, 27)])
def test_passes_of_a_hundred_thousand_tokens(block: int, expected: int) -> None:
    """In pieces of 3,900 tokens, as an ingest commits them; nothing is run."""
    wish = Settings(block_tokens=block)
    hot = Engine.of(tiny_model("qwen2"), "int8").hot_window(wish, N_SINKS, wish.document)
    n_passes, end = 0, 0
    while end < 100_000:
        end = min(end + 3900, 100_000)
        while hot.n_tokens < end:
            hot.n_tokens += min(hot.room, end - hot.n_tokens)
            n_passes += 1
    assert n_passes == expected
