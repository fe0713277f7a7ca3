"""A choice of model filled in with what a store was written with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from livingkv.errors import InputError
from livingkv.model_choice import ModelChoice
from livingkv.models import DualChunk, load_model
from livingkv.store import Fingerprint
from tests.tiny import tiny_model, tiny_network, tiny_tokenizer

WRITTEN = Fingerprint(
    model="m", tokenizer="t", rope="half-split dim=16", dtype="bfloat16", quantization="none", codec="int8"
)


@pytest.mark.parametrize(
    ("changes", "weights", "dual_chunk"),
    [
        ({}, None, False),
        ({"dtype": "float32"}, "fp32", False),
        ({"dtype": "float16"}, None, False),
        ({"quantization": "8bit"}, "8bit", False),
        ({"quantization": "gptq"}, None, False),
        ({"rope": "half-split rope_type='default' dual_chunk=512/64/1024"}, None, DualChunk(512, 64, 1024)),
    ],
)
def test_what_is_left_open_is_as_in_the_store(changes: dict[str, Any], weights: Any, dual_chunk: Any) -> None:
    written = replace(WRITTEN, **changes)
    assert ModelChoice.of(None).as_in(written, "tiny") == ModelChoice("tiny", weights, dual_chunk)
    chosen = ModelChoice("other", "4bit", True)
    assert chosen.as_in(written, "tiny") == chosen


def test_a_rope_text_gives_its_own_sizes_back() -> None:
    sizes = DualChunk(512, 64, 1024)
    written = replace(WRITTEN, rope=tiny_model("llama", dual_chunk=sizes).rope_text)
    assert ModelChoice.of("m").as_in(written, "tiny").dual_chunk == sizes


def test_dual_chunk_can_be_wanted_or_not(tmp_path: Path, tiny_folder: Path) -> None:
    sizes = {"chunk_size": 512, "local_size": 64, "original_max_position_embeddings": 512}
    tiny_network("qwen2", dual_chunk_attention_config=sizes).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    for wish, has_it in ((None, True), (True, True), (False, False)):
        assert (ModelChoice(tmp_path, None, wish).load().dual_chunk is not None) is has_it
    with pytest.raises(InputError, match="has no dual-chunk sizes"):
        ModelChoice(tiny_folder, None, True).load()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_packed_weights_are_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a CUDA device"):
        load_model(tmp_path / "none", weights="8bit")
