"""Randomly initialised models as folders, where a shape matters and weights do not. Knows configs; imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM

Shape = Literal["tiny", "7b"]
_7B: dict[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0},
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
}
"""Qwen2.5-7B-Instruct-1M without its dual-chunk positions, which change nothing below 262,144 tokens."""


def model_folder(folder: Path, shape: Shape, device: str) -> Path:
    """A Qwen2 of that shape in bf16 with the tests' tokenizer, made on `device` where the folder has none yet."""
    from tests.tiny import tiny_config, tiny_tokenizer

    if not (folder / "config.json").exists():
        changes = _7B if shape == "7b" else {"max_position_embeddings": 131072}
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(device):
                network = AutoModelForCausalLM.from_config(
                    AutoConfig.for_model(**tiny_config("qwen2", **changes).to_dict())
                )
        finally:
            torch.set_default_dtype(before)
        network.save_pretrained(folder, max_shard_size="2GB")
        tiny_tokenizer().save_pretrained(folder)
        del network
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    return folder
