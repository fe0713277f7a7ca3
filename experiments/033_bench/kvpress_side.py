"""Decoding behind a cache that kvpress pruned; runs under a Python of its own, which need not have livingkv.

    python kvpress_side.py MODEL_FOLDER N_TOKENS DEVICE

Prints JSON: seconds of reading, seconds of each step, bytes of the cache.
"""

from __future__ import annotations

import importlib
import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache

STEPS = 8


def main(folder: str, n_tokens: int, device: str) -> None:
    """Read random text with half of it pruned layer by layer, then decode."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa").to(device)
    ids = (torch.arange(n_tokens)[None] % (model.config.vocab_size // 2)).to(device)
    cache, started = DynamicCache(), time.perf_counter()
    with torch.inference_mode():
        with importlib.import_module("kvpress").ExpectedAttentionPress(compression_ratio=0.5)(model):
            model.model(ids, past_key_values=cache, use_cache=True)
        read = time.perf_counter() - started
        token, seconds = ids[:, -1:], []
        for step in range(STEPS):
            started = time.perf_counter()
            positions = torch.tensor([[n_tokens + step]], device=device)
            logits = model(token, past_key_values=cache, position_ids=positions).logits
            token = logits[:, -1:].argmax(-1)
            float(token)
            seconds.append(time.perf_counter() - started)
    size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    print(json.dumps({"read_seconds": read, "step_seconds": seconds[1:], "cache_bytes": size}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
