"""Makes a small random mixture-of-experts model, to try streaming with. What it says is noise.

    python examples/tiny_moe.py FOLDER [MODEL]

Its architecture is that of Qwen3-30B-A3B, with four layers of 32 experts, of which a token needs four each. Tokenizer
and chat template are those of MODEL, left out the default model. About 60 MB.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from livingkv.model_loading import load_tokenizer
from livingkv.model_sources import find_model


def main(folder: Path, model: str | None = None) -> None:
    """Save it there."""
    tokenizer = load_tokenizer(find_model(model).folder)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        moe_intermediate_size=128,
        num_experts=32,
        num_experts_per_tok=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"a random model with 128 experts is in {folder}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/tiny_moe.py FOLDER [MODEL]")
    main(Path(sys.argv[1]), *sys.argv[2:])
