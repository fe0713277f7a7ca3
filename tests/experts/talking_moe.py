"""Tiny mixture-of-experts checkpoints that can be talked to: with the tokenizer of the other tiny models."""

from __future__ import annotations

from pathlib import Path

from tests.experts.tiny_moe import make_checkpoint
from tests.tiny import VOCAB_SIZE, tiny_tokenizer

FEW_BYTES = 150_000
"""RAM for about nine of 24 experts, beside the buffers of reading."""


def talking_checkpoint(family: str, folder: Path) -> Path:
    """Save a random model of the family with tokenizer and chat template, and answer the folder."""
    tokenizer = tiny_tokenizer()
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    make_checkpoint(family, folder, vocab_size=VOCAB_SIZE, max_position_embeddings=2048, **ids)
    tokenizer.save_pretrained(folder)
    return folder
