"""A slow, literal implementation of the dual-chunk rules as vLLM states them, one query and key at
a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from livingkv.model_rope import DualChunk, Rope


def rotate_at(x: Tensor, position: int, rope: Rope) -> Tensor:
    """`x` [dim] rotated at one position, in fp64."""
    angles = position * rope.inverse_frequencies
    cos, sin = torch.cat((angles.cos(),) * 2), torch.cat((angles.sin(),) * 2)
    first, second = x.double().chunk(2)
    return x.double() * cos + torch.cat((-second, first)) * sin


def dual_chunk_attention(
    query: Tensor, key: Tensor, value: Tensor, rope: Rope, rules: DualChunk, scale: float
) -> Tensor:
    """Causal attention of unrotated query [heads, tokens, dim] over key and value [kv_heads, tokens, dim], in fp64.

    Every query takes the temperature of its own block's end, which for this function is the whole sequence.
    """
    heads, tokens, _ = query.shape
    group = heads // key.shape[0]
    c = rules.chunk_tokens - rules.local_tokens
    stretch = max(1.0, 0.1 * math.log(tokens / rules.original_context) + 1.0) ** 2
    out = torch.empty(query.shape, dtype=torch.float64)
    for head in range(heads):
        keys = [rotate_at(key[head // group, j], j % c, rope) for j in range(tokens)]
        for i in range(tokens):
            scores = torch.empty(i + 1, dtype=torch.float64)
            for j in range(i + 1):
                behind = i // c - j // c
                if behind == 0:
                    position = i % c
                elif behind == 1:
                    position = min(i % c + c, rules.chunk_tokens)
                else:
                    position = rules.chunk_tokens
                scores[j] = rotate_at(query[head, i], position, rope) @ keys[j] * scale * stretch
            out[head, i] = scores.softmax(-1) @ value[head // group, : i + 1].double()
    return out
