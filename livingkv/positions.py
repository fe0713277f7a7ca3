"""Rotary positions: angles, rotations, and the three position policies.

Knows integer positions and the model's inverse frequencies; knows no buffers, pages or attention. Angles are products
of integer positions and frequencies in fp64, because in fp32 the angle at position 1,000,000 is off by up to 0.03 rad.

A key is stored rotated at its absolute position p. Rotations compose, so the key at p' is the stored one rotated once
more by p' - p (RoFormer, arXiv 2104.09864, equation 34). Policies give each key and query its effective position:

- absolute: the position itself.
- compact: consecutive positions that end at the query; recalled passages move next to the question.
- dual_chunk: the rules of Dual Chunk Attention (arXiv 2402.17463) as Qwen2.5-1M uses them: keys at p mod C, three
  query variants, so that no distance leaves the trained range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from livingkv.model_rope import DualChunk, Rope


def period(rules: DualChunk) -> int:
    """C: keys sit at p mod C."""
    return rules.chunk_tokens - rules.local_tokens


def temperature(rules: DualChunk, length: int) -> float:
    """What the scores of a sequence of `length` tokens are multiplied with: the square of vLLM's factor on q and on
    k."""
    scale = max(1.0, 0.1 * math.log(max(length, 1) / rules.original_context) + 1.0)
    return scale * scale


def temperatures(rules: DualChunk, lengths: Tensor) -> Tensor:
    """`temperature` of each of `lengths`, fp64 [n], on their device."""
    scale = (0.1 * (lengths / rules.original_context).log() + 1.0).clamp(min=1.0)
    return scale * scale


def query_position(rules: DualChunk, position: int, key_chunk: int) -> int:
    """Effective position of the query at `position` against keys of chunk `key_chunk`."""
    chunk, rest = divmod(position, period(rules))
    if key_chunk == chunk:
        return rest
    if key_chunk == chunk - 1:
        return min(rest + period(rules), rules.chunk_tokens)
    return rules.chunk_tokens


def query_positions(rules: DualChunk, first: int, n_tokens: int, key_chunk: int, device: torch.device) -> Tensor:
    """`query_position` of `n_tokens` queries from `first` on, all of one chunk: int64 on `device`, which is not waited
    for."""
    chunk, rest = divmod(first, period(rules))
    assert rest + n_tokens <= period(rules), "a pass never straddles a border"
    if key_chunk not in (chunk, chunk - 1):
        return torch.full((n_tokens,), rules.chunk_tokens, dtype=torch.int64, device=device)
    positions = torch.arange(rest, rest + n_tokens, device=device)
    return positions if key_chunk == chunk else (positions + period(rules)).clamp_(max=rules.chunk_tokens)


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and sin for a run of tokens, fp32 [tokens, rotary_dim], made once per forward pass and used in every
    layer."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Tensor, rope: Rope) -> Rotation:
    """The rotation by `positions` (int64 [tokens], any sign), from fp64 angles, on the positions' device."""
    frequencies = rope.frequencies_on(positions.device)
    angles = positions.to(torch.float64)[:, None] * frequencies  # [tokens, rotary_dim / 2]
    cos, sin = angles.cos().float(), angles.sin().float()
    return Rotation(torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """`x` [..., tokens, dim] rotated, computed in fp32 and rounded once to x's dtype. Dimensions past rotary_dim
    pass."""
    dim = by.cos.shape[-1]
    wide = x[..., :dim].float()
    first, second = wide.chunk(2, -1)
    turned = wide * by.cos + torch.cat((-second, first), -1) * by.sin
    if dim == x.shape[-1]:
        return turned.to(x.dtype)
    return torch.cat((turned.to(x.dtype), x[..., dim:]), -1)


def shift(x: Tensor, delta: int, rope: Rope) -> Tensor:
    """Keys `x` [..., tokens, dim] moved by `delta` positions. A delta of 0 returns x itself, to the last bit."""
    if delta == 0:
        return x
    return rotate(x, rotation(torch.full((1,), delta, device=x.device), rope))
