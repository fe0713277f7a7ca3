"""Rotary frequencies and dual-chunk settings, as read from a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from livingkv.errors import InputError, UnsupportedModel
from livingkv.model_rope import DualChunk, read_rope, rope_text
from tests.tiny import tiny_model, tiny_network

THETA = 10000.0
SCALED: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": THETA},
    {"rope_type": "linear", "rope_theta": THETA, "factor": 4.0},
    {"rope_type": "yarn", "rope_theta": THETA, "factor": 4.0, "original_max_position_embeddings": 512},
    {
        "rope_type": "llama3",
        "rope_theta": THETA,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
]


@pytest.mark.parametrize("parameters", SCALED, ids=[str(case["rope_type"]) for case in SCALED])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_frequencies_are_the_models_own(family: str, parameters: dict[str, Any]) -> None:
    model = tiny_model(family, rope_parameters=parameters)
    own = model.network.model.rotary_emb
    assert model.rope.inverse_frequencies.dtype == torch.float64
    assert torch.equal(model.rope.inverse_frequencies.float(), own.inv_freq)
    assert model.rope.attention_factor == own.attention_scaling
    assert model.rope.rotary_dim == 16
    assert (model.rope.attention_factor > 1) == (parameters["rope_type"] == "yarn")


def test_the_text_names_every_setting_and_is_stable() -> None:
    model = tiny_model("llama", rope_parameters=SCALED[3])
    assert model.rope_text == (
        "half-split dim=16 attention_factor=1 factor=8.0 high_freq_factor=4.0 low_freq_factor=1.0 "
        "original_max_position_embeddings=512 rope_theta=10000.0 rope_type='llama3'"
    )
    assert rope_text(model.network.config, model.rope) == model.rope_text
    assert tiny_model("llama").rope_text != tiny_model("llama", rope_parameters=SCALED[1]).rope_text


def test_rounded_frequencies_are_refused() -> None:
    network = tiny_network("qwen2").to(torch.bfloat16)
    with pytest.raises(UnsupportedModel, match=r"rounded to torch\.bfloat16"):
        read_rope(network.model.rotary_emb)


def test_a_rotary_module_without_frequencies_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="inv_freq"):
        read_rope(SimpleNamespace())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 1, 8), "chunk_tokens: got 0; a positive whole number"),
        ((8, -1, 8), "local_tokens: got -1"),
        ((8, True, 8), "local_tokens: got True"),
        ((8, 2.0, 8), "local_tokens: got 2.0"),
        ((8, 8, 8), "local_tokens: got 8; less than 8"),
        ((16, 8, 8), "chunk_tokens: got 16; at most original_context"),
    ],
)
def test_dual_chunk_sizes_are_checked(sizes: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DualChunk(*sizes)


def test_a_broken_dual_chunk_config_names_what_is_allowed() -> None:
    for broken in ({"chunk_size": 8}, [8, 4], "on"):
        with pytest.raises(InputError, match="chunk_size, local_size, original_max_position_embeddings"):
            DualChunk.from_config(SimpleNamespace(dual_chunk_attention_config=broken))
    assert DualChunk.from_config(SimpleNamespace()) is None


def test_dual_chunk_of_the_config_and_of_the_caller() -> None:
    sparse = {"chunk_size": 512, "local_size": 64, "original_max_position_embeddings": 512}
    model = tiny_model("qwen2", dual_chunk_attention_config=sparse)
    assert model.dual_chunk == DualChunk(512, 64, 512)
    assert model.shape.native_context == 512
    given = DualChunk(256, 32, 512)
    assert tiny_model("qwen2", dual_chunk=given, dual_chunk_attention_config=sparse).dual_chunk == given
    assert tiny_model("llama", dual_chunk=given).dual_chunk == given
    assert tiny_model("llama").dual_chunk is None
