"""The network of the experiment: the shape of Qwen2.5-7B-Instruct-1M with random weights, made on the device.

Speed depends on sizes and not on what weights say. `tiny` is a shape of the same kind for a dry run without a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from livingkv.models import DualChunk, LoadedModel, from_network
from tests.tiny import tiny_tokenizer

CHUNKS = DualChunk(chunk_tokens=262_144, local_tokens=8_192, original_context=262_144)
SINKS = 16


@dataclass(frozen=True)
class Scale:
    """How large everything is. lengths: stored tokens of a session; full: tokens in Hugging Face's whole cache."""

    config: Qwen2Config
    dtype: torch.dtype
    chunks: DualChunk
    window: int
    lengths: tuple[int, int]
    full: tuple[int, ...]
    n_steps: int
    copied_bytes: int


def scale_of(tiny: bool) -> Scale:
    """The real one, or that of a dry run."""
    if tiny:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 304}
        config = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024)
        return Scale(config, torch.float32, DualChunk(256, 32, 256), 128, (300, 900), (500,), 70, 1 << 20)
    config = Qwen2Config(
        hidden_size=3584,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        intermediate_size=18_944,
        vocab_size=152_064,
        max_position_embeddings=1_010_000,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7},
        tie_word_embeddings=False,
        use_sliding_window=False,
    )
    full = (32_768, 131_072, 524_288)
    return Scale(config, torch.bfloat16, CHUNKS, 4096, (32_768, 524_288), full, 256, 1 << 32)


def network_of(scale: Scale, device: torch.device) -> Any:
    """A Hugging Face network with random weights, in eval mode."""
    torch.manual_seed(0)
    with device if device.type == "cuda" else nullcontext():
        network = AutoModelForCausalLM.from_config(scale.config, dtype=scale.dtype, attn_implementation="sdpa")
    return network.eval().requires_grad_(False)


def loaded(network: Any) -> LoadedModel:
    """As livingkv takes it. Stop tokens do not matter: the experiment counts tokens itself."""
    return from_network(network, tiny_tokenizer(), name="qwen2.5-7b-shape", dual_chunk="off")


def read_bytes(network: Any) -> int:
    """Bytes of weights that one token reads: all but the embeddings, of which it reads a row."""
    embedding = network.get_input_embeddings().weight
    head = network.get_output_embeddings().weight
    every = sum(int(each.nbytes) for each in network.parameters())
    return every if head.data_ptr() == embedding.data_ptr() else every - int(embedding.nbytes)
