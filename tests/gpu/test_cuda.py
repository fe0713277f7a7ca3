"""The numeric core on CUDA: what the CPU tests prove holds there too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from livingkv.attention import Partition, attend, attend_reference
from livingkv.codec import KV
from livingkv.engine import Engine
from livingkv.hot_window import HotWindow, window_start
from livingkv.models import from_network
from livingkv.positions import rotation
from livingkv.settings import CodecName, Settings
from tests.core.test_cells import kv_of, read, window
from tests.core.test_exactness import tokens
from tests.tiny import FAMILIES, tiny_network, tiny_tokenizer

pytestmark = pytest.mark.gpu

SETTINGS = Settings(window_tokens=128, block_tokens=64)


def cuda_engine(family: str, codec: CodecName, dtype: torch.dtype = torch.float32) -> Engine:
    """A tiny engine on the GPU."""
    network = tiny_network(family, dtype=dtype).to("cuda")
    return Engine.of(from_network(network, tiny_tokenizer(), name=f"tiny-{family}"), codec)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_attention_equals_the_reference(dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def make(heads: int, n: int) -> torch.Tensor:
        return torch.randn(1, heads, n, 64, generator=generator, device="cuda").to(dtype)

    for tokens_, n_keys in ((1, 300), (77, 512), (200, 1)):
        parts = [Partition(make(14, tokens_), make(2, n_keys), make(2, n_keys))]
        parts.append(Partition(make(14, tokens_), make(2, tokens_), make(2, tokens_), causal=True))
        got, want = attend(parts, 0.125), attend_reference(parts, 0.125)
        assert (got.float() - want.float()).abs().max() < (1e-5 if dtype == torch.float32 else 0.03)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_cpu(family: str) -> None:
    ids = tokens(300)
    network = tiny_network(family)
    with torch.inference_mode():
        want = network(ids[None]).logits[0]
    engine = cuda_engine(family, "lossless")
    hot = engine.hot_window(Settings(window_tokens=512, block_tokens=64), 16)
    got = engine.runner.logits(ids.cuda(), hot, "all")[0].cpu()
    assert (got - want).abs().max() <= 1e-3


@pytest.mark.parametrize("codec", ["int8", "lossless"])
def test_restored_continues_bit_for_bit(codec: CodecName) -> None:
    engine = cuda_engine("qwen2", codec, torch.bfloat16)
    hot = engine.hot_window(SETTINGS, 8)
    engine.runner.read(tokens(519).cuda(), hot)
    pages, tail = list(hot.take_sealed()), hot.tail()
    other: HotWindow = engine.hot_window(SETTINGS, 8)
    first = window_start(519, SETTINGS.conversation) // 64
    other.restore(pages[first:], first, pages[0], tail)
    token = tokens(1).cuda()
    for _ in range(40):
        one = engine.runner.logits(token, hot)[0, -1]
        assert torch.equal(one, engine.runner.logits(token, other)[0, -1])
        token = one.argmax()[None]


@pytest.mark.parametrize("codec", ["int8", "lossless"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_cells_equal_one_cell_a_pass(codec: CodecName, dtype: torch.dtype) -> None:
    engine, ids = cuda_engine("qwen2", codec, dtype), tokens(1500)
    want = read(engine, window(engine, 128), ids, (333, 700))
    got = read(engine, window(engine, None), ids, (333, 700))
    assert max(want.passes) == 128 and max(got.passes) == 800
    close = 1e-4 if dtype == torch.float32 else 0.02
    assert (got.hidden.float() - want.hidden.float()).abs().mean() < close
    for one, two in zip(kv_of(engine, got), kv_of(engine, want), strict=True):
        assert (one.float() - two.float()).abs().mean() < close


@pytest.mark.parametrize("codec", ["int8", "lossless"])
def test_restored_after_many_cells_continues_bit_for_bit(codec: CodecName) -> None:
    engine, ids = cuda_engine("qwen2", codec, torch.bfloat16), tokens(1000)
    hot, other = window(engine, None), window(engine, None)
    made = read(engine, hot, ids)
    first = window_start(1000, hot.look) // 64
    other.restore(made.pages[first:], first, made.pages[0], made.tail)
    more = tokens(700, seed=5)
    on, again = read(engine, hot, more), read(engine, other, more)
    assert torch.equal(on.hidden, again.hidden) and on.pages == again.pages and on.tail == again.tail


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_stored_is_known_without_its_bytes(dtype: torch.dtype) -> None:
    engine = cuda_engine("qwen2", "int8", dtype)
    raw = torch.randn(2, 3, 2, 192, 16, generator=torch.Generator("cuda").manual_seed(0), device="cuda").to(dtype)
    pages = engine.codec.encode(KV(raw[0], raw[1]), 640)
    back = engine.codec.decode(pages, [640, 704, 768], raw.device)
    stored = engine.codec.stored(KV(raw[0], raw[1]), rotation(torch.arange(640, 832, device="cuda"), engine.model.rope))
    assert torch.equal(stored.keys, back.keys) and torch.equal(stored.values, back.values)


def test_states_embed_on_the_device_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path))
    monkeypatch.setattr("livingkv.state_embedder._CALIBRATION_SENTENCES", 40)
    vectors = cuda_engine("qwen2", "int8", torch.float32).state_embedder().embed(["one door", "no window at all"])
    assert vectors.shape[0] == 2 and abs((vectors * vectors).sum(1) - 1.0).max() < 1e-4
