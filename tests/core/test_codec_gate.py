"""The gate before a new store: 8-bit pages are measured against lossless ones, refused where they lose the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from livingkv import Memory, Settings
from livingkv.codec_gate import MAX_KL, MIN_AGREEMENT, GateResult, measure_codec
from livingkv.engine import Engine
from livingkv.errors import CodecRefused
from livingkv.models import LoadedModel, from_network
from tests.tiny import FAMILIES, tiny_model, tiny_network, tiny_tokenizer

SMALL = Settings(window_tokens=256, block_tokens=64, codec="int8")


def model_with_loud_values(size: float = 1e5) -> LoadedModel:
    """One value channel of each head is huge and used by nobody: lossless KV is as good as ever, 8 bits drown the
    other channels in it."""
    network = tiny_network("qwen2")
    config = network.config
    n_groups = config.num_attention_heads // config.num_key_value_heads
    for layer in network.model.layers:
        attention = layer.self_attn
        for head in range(config.num_key_value_heads):
            attention.v_proj.bias.data[head * 16] = size
            for group in range(n_groups):
                attention.o_proj.weight.data[:, (head * n_groups + group) * 16] = 0.0
    return from_network(network, tiny_tokenizer(), name="loud")


@pytest.mark.parametrize("family", FAMILIES)
def test_fit_models_pass(family: str) -> None:
    result = measure_codec(Engine.of(tiny_model(family), "int8"))
    assert result.passed and result.kl <= MAX_KL


def test_8_bits_that_lose_the_model_are_refused_before_a_store_is_made(tmp_path: Path) -> None:
    model = model_with_loud_values()
    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        for write in (lambda: memory.ingest("a", text=b"One."), lambda: memory.chat("Hello.", max_tokens=2)):
            with pytest.raises(CodecRefused, match="use --codec lossless") as caught:
                write()
            assert "greedy agreement 0." in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_lossless_pages_serve_such_a_model(tmp_path: Path) -> None:
    model = model_with_loud_values()
    with Memory.open(tmp_path / "s", model=model, settings=Settings(codec="lossless")) as memory:
        memory.ingest("a", text=b"One sentence. Another one.")
        assert memory.ask("What is the sentence?", mode="kv", max_tokens=3).mode == "kv"
        assert memory.stats().codec == "lossless"


def test_greedy_choices_count_also_where_distributions_are_near() -> None:
    assert GateResult(MAX_KL, MIN_AGREEMENT).passed
    assert not GateResult(0.0, MIN_AGREEMENT - 0.01).passed
    assert not GateResult(MAX_KL * 1.01, 1.0).passed
    assert not GateResult(float("nan"), 1.0).passed


def test_a_naive_8_bit_codec_would_not_pass() -> None:
    """Without the key bias taken off, keys as large as Qwen2.5's lose what is small in them (transformers 35185)."""
    network = tiny_network("qwen2")
    generator = torch.Generator().manual_seed(0)
    for layer in network.model.layers:
        torch.nn.init.normal_(layer.self_attn.k_proj.bias, std=300.0, generator=generator)
    engine = Engine.of(from_network(network, tiny_tokenizer(), name="qwen"), "int8")
    careful = measure_codec(engine)
    vars(engine.codec)["_bias"] = None
    naive = measure_codec(engine)
    assert naive.kl > 4 * careful.kl
