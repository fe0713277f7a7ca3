"""Tensor parallel: livingkv keeps the KV of a whole model. A model in parts is refused, and so is a store of parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from livingkv import Memory, Settings
from livingkv.codec import KV, PageShape, make_codec
from livingkv.errors import FingerprintMismatch, RecordDamaged, UnsupportedModel
from livingkv.models import from_network
from tests.tiny import tiny_model, tiny_network, tiny_tokenizer

SMALL = Settings(window_tokens=256, block_tokens=64)


def test_weights_on_several_devices_are_refused() -> None:
    network = tiny_network("qwen2")
    network.model.layers[2].to("meta")
    with pytest.raises(UnsupportedModel, match=r"spread over cpu, meta; load all of it onto one device") as caught:
        from_network(network, tiny_tokenizer(), name="spread")
    assert "\n" not in str(caught.value)


def test_a_rank_of_a_tensor_parallel_model_is_refused() -> None:
    network = tiny_network("qwen2")
    network._tp_size = 2
    with pytest.raises(UnsupportedModel, match="tensor parallel"):
        from_network(network, tiny_tokenizer(), name="rank 0 of 2")


def half_of_the_heads(rank: int) -> Any:
    """What a rank of two holds: half of the heads of every layer, as a network of its own."""
    whole = tiny_network("qwen2")
    half = tiny_network("qwen2", num_attention_heads=2, num_key_value_heads=1)
    for layer, own in zip(whole.model.layers, half.model.layers, strict=True):
        for name, rows in (("q_proj", 32), ("k_proj", 16), ("v_proj", 16)):
            from_, to = getattr(layer.self_attn, name), getattr(own.self_attn, name)
            to.weight.data = from_.weight.data[rank * rows : (rank + 1) * rows].clone()
            to.bias.data = from_.bias.data[rank * rows : (rank + 1) * rows].clone()
        own.self_attn.o_proj.weight.data = layer.self_attn.o_proj.weight.data[:, rank * 32 : (rank + 1) * 32].clone()
    return half


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_of_the_whole_model_is_not_opened_by_a_part(tmp_path: Path, rank: int) -> None:
    with Memory.open(tmp_path / "s", model=tiny_model(), settings=SMALL) as memory:
        memory.ingest("a", text=b"One sentence. " * 30)
    part = from_network(half_of_the_heads(rank), tiny_tokenizer(), name="part")
    with pytest.raises(FingerprintMismatch, match="model"):
        Memory.open(tmp_path / "s", model=part)
    with Memory.open(tmp_path / "s", model=tiny_model(), settings=SMALL) as memory:
        assert memory.check().problems == ()


def test_a_page_of_a_part_never_becomes_a_tensor() -> None:
    whole, half = PageShape(3, 2, 16, torch.float32), PageShape(3, 1, 16, torch.float32)
    rope = tiny_model().rope
    for name in ("int8", "lossless"):
        codec = make_codec("int8" if name == "int8" else "lossless", half, (None,) * 3, rope)
        (page,) = codec.encode(KV(torch.ones(3, 1, 64, 16), torch.ones(3, 1, 64, 16)), 0)
        reader = make_codec(codec.name, whole, (None,) * 3, rope)
        with pytest.raises(RecordDamaged, match="shape"):
            reader.decode([page], [0], torch.device("cpu"))
