"""Attention over disjoint partitions, merged by log-sum-exp.

Knows queries, keys and values that are already rotated; knows no positions, pages or models. `attend_reference` is the
plain fp32 computation; `attend` must agree with it and is what runs. A partition is a set of keys with its own query
variant (dual-chunk positions need up to three), so partial results carry their log-sum-exp and are merged exactly
(FlashAttention, arXiv 2205.14135, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_GROUPED_TOKENS = 32
"""With fewer queries the heads of a group fill a kernel's tile only together."""

_FEW_TOKENS = 64
_FEW_SCORES = 1 << 22
"""On a CPU PyTorch's flash kernel cuts this few queries into products too small for its library: two whole products
take 0.5 to 0.97 of its time (experiments/LOG.md). Their scores are in memory at once, 16 MiB."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Keys and values [batch, kv_heads, n_keys, dim] with the queries [batch, heads, tokens, dim] that see them.

    causal: the last query sees every key, each one before it one key less (n_keys >= tokens); else every query sees
    every key.
    key_mask: bool [batch, n_keys], False hides a key (padding of batched candidates); None hides none.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    causal: bool = False
    key_mask: Tensor | None = None


def attend(partitions: Sequence[Partition], scale: float) -> Tensor:
    """Softmax attention over the union of the partitions: [batch, heads, tokens, dim] in the queries' dtype.

    `scale` multiplies the scores before the softmax. Empty partitions are skipped; at least one must hold a key.
    """
    parts = [each for part in partitions if part.keys.shape[2] for each in _computable(part)]
    assert parts, "attention over nothing"
    if len(parts) == 1 and _is_few(parts[0]):
        return _few(parts[0], scale)[0]
    pairs = [_attend_one(part, scale) for part in parts]
    return _merge(pairs, parts[0].queries.dtype)


def attend_in_turn(partitions: Iterable[Partition], scale: float) -> Tensor:
    """`attend` over partitions that are made one after the other: each is merged before the next is asked for, so that
    one at a time is in memory. The same up to fp32 rounding."""
    out: Tensor | None = None  # fp32
    lse: Tensor | None = None
    for part in (each for whole in partitions if whole.keys.shape[2] for each in _computable(whole)):
        dtype = part.queries.dtype
        piece, piece_lse = _attend_one(part, scale)
        if out is None or lse is None:
            out, lse = piece.float(), piece_lse
            continue
        total = torch.logaddexp(lse, piece_lse)
        out = out * (lse - total).exp().unsqueeze(-1) + piece.float() * (piece_lse - total).exp().unsqueeze(-1)
        lse = total
    assert out is not None, "attention over nothing"
    return out.to(dtype)


def attend_reference(partitions: Sequence[Partition], scale: float) -> Tensor:
    """The same in plain fp32, one softmax over all scores. The yardstick of `attend` in the tests."""
    scores, values = [], []
    for part in partitions:
        heads, kv_heads = part.queries.shape[1], part.keys.shape[1]
        keys = part.keys.repeat_interleave(heads // kv_heads, 1).float()
        score = part.queries.float() @ keys.transpose(-1, -2) * scale  # [batch, heads, tokens, n_keys]
        scores.append(_hide(score, part))
        values.append(part.values.repeat_interleave(heads // kv_heads, 1).float())
    weights = torch.cat(scores, -1).softmax(-1)
    return (weights @ torch.cat(values, 2)).to(partitions[0].queries.dtype)


def _hide(score: Tensor, part: Partition) -> Tensor:
    if part.causal:
        tokens, n_keys = score.shape[-2:]
        later = torch.ones(tokens, n_keys, dtype=torch.bool, device=score.device).triu(1 + n_keys - tokens)
        score = score.masked_fill(later, float("-inf"))
    if part.key_mask is not None:
        score = score.masked_fill(~part.key_mask[:, None, None, :], float("-inf"))
    return score


def _merge(pairs: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Tensor:
    """Weighted sum of partial outputs [b, h, t, d] by their log-sum-exp [b, h, t]."""
    if len(pairs) == 1:
        return pairs[0][0].to(dtype)
    total = torch.logsumexp(torch.stack([lse for _, lse in pairs]), 0)
    out = torch.zeros_like(pairs[0][0], dtype=torch.float32)
    for part, lse in pairs:
        out += part.float() * (lse - total).exp().unsqueeze(-1)
    return out.to(dtype)


def takes_groups(x: Tensor) -> bool:
    """True where one kernel attends grouped heads as they are, and keys in front of a causal block with it
    (FlashAttention on a CUDA device, in 16 bits; its causal mask is aligned at the last query and the last key)."""
    return x.device.type == "cuda" and x.dtype in (torch.bfloat16, torch.float16)


def _computable(part: Partition) -> list[Partition]:
    """The partition in parts that there is a kernel for: keys in front of a causal block may be one of their own."""
    n_before = part.keys.shape[2] - part.queries.shape[2]
    if not part.causal or n_before == 0 or part.key_mask is not None or takes_groups(part.queries) or _is_few(part):
        return [part]
    assert n_before > 0, "a causal query has a key of its own"
    own = Partition(part.queries, part.keys[:, :, n_before:], part.values[:, :, n_before:], causal=True)
    return [own, Partition(part.queries, part.keys[:, :, :n_before], part.values[:, :, :n_before])]


def _attend_one(part: Partition, scale: float) -> tuple[Tensor, Tensor]:
    """Output [b, h, t, d] and fp32 log-sum-exp [b, h, t] of one partition by the quickest kernel that fits."""
    if part.key_mask is not None:
        return _by_products(part, scale)
    if _is_few(part):
        out, weights, score = _few(part, scale)
        return out, score.amax(-1) - weights.amax(-1).log()  # the largest weight is exp(its score - lse)
    if takes_groups(part.queries) and part.queries.shape[2] >= _GROUPED_TOKENS:
        return _flash(part.queries, part.keys, part.values, scale, causal=part.causal)
    if part.causal:
        return _flash(part.queries, *_repeat(part), scale, causal=True)
    return _folded(part, scale)


def _repeat(part: Partition) -> tuple[Tensor, Tensor]:
    group = part.queries.shape[1] // part.keys.shape[1]
    if group == 1:
        return part.keys, part.values
    return part.keys.repeat_interleave(group, 1), part.values.repeat_interleave(group, 1)


def _folded(part: Partition, scale: float) -> tuple[Tensor, Tensor]:
    """No mask: the query heads of a key head become more query rows, so that keys are not repeated."""
    batch, heads, tokens, dim = part.queries.shape
    kv_heads = part.keys.shape[1]
    queries = part.queries.reshape(batch, kv_heads, heads // kv_heads * tokens, dim)
    out, lse = _flash(queries, part.keys, part.values, scale, causal=False)
    return out.reshape(batch, heads, tokens, dim), lse.reshape(batch, heads, tokens)


def _is_few(part: Partition) -> bool:
    """Whether so few queries see the keys, in bf16 on a CPU, that two whole products are quicker than a kernel."""
    batch, heads, tokens, _ = part.queries.shape
    fits = tokens <= _FEW_TOKENS and batch * heads * tokens * part.keys.shape[2] <= _FEW_SCORES
    is_plain = part.key_mask is None and part.queries.device.type == "cpu" and part.queries.dtype == torch.bfloat16
    return fits and is_plain and part.keys.dtype == torch.bfloat16


def _few(part: Partition, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Output in bf16, and weights and scores in fp32 [b, h, t, keys]: scores as an fp32 product of what is stored in
    bf16, weights rounded to bf16 before the second one, as in the fused kernels."""
    batch, heads, tokens, dim = part.queries.shape
    kv_heads, n_keys = part.keys.shape[1:3]
    queries = part.queries.reshape(batch, kv_heads, heads // kv_heads * tokens, dim).float() * scale
    score = (queries @ part.keys.float().transpose(-1, -2)).view(batch, heads, tokens, n_keys)
    if part.causal and tokens > 1:  # the newest keys alone are hidden from any query
        score[..., n_keys - tokens :] += score.new_full((tokens, tokens), float("-inf")).triu_(1)
    weights = score.softmax(-1)
    rows = weights.to(torch.bfloat16).view(batch, kv_heads, heads // kv_heads * tokens, n_keys)
    return (rows @ part.values).view(batch, heads, tokens, dim), weights, score


def _by_products(part: Partition, scale: float) -> tuple[Tensor, Tensor]:
    """Two fp32 matrix products around a softmax. In bf16 the scores of Qwen2.5 (hundreds) would be off by whole
    units."""
    batch, heads, tokens, dim = part.queries.shape
    kv_heads = part.keys.shape[1]
    queries = part.queries.reshape(batch, kv_heads, heads // kv_heads * tokens, dim).float()
    score = queries @ part.keys.float().transpose(-1, -2) * scale
    score = _hide(score.view(batch, heads, tokens, -1), part)
    lse = score.logsumexp(-1)
    weights = (score - lse.unsqueeze(-1)).exp()
    out = weights.view(batch, kv_heads, heads // kv_heads * tokens, -1) @ part.values.float()
    return out.view(batch, heads, tokens, dim), lse


def _flash(queries: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool) -> tuple[Tensor, Tensor]:
    """PyTorch's fused kernels, called where they return the log-sum-exp."""
    ops = torch.ops.aten
    if queries.device.type == "cpu":
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0.0, causal, scale=scale)
        return out, lse
    if queries.dtype == torch.float32:
        out, lse, *_ = ops._scaled_dot_product_efficient_attention(
            queries, keys, values, None, True, 0.0, causal, scale=scale
        )
        return out, lse[..., : queries.shape[2]]
    out, lse, *_ = ops._scaled_dot_product_flash_attention(queries, keys, values, 0.0, causal, scale=scale)
    return out, lse[..., : queries.shape[2]]
