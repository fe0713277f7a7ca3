"""The 8-bit page codec as Triton kernels: the arithmetic of `codec.Int8`, operation by operation, in one launch.

Knows pointers, strides and one page of one layer at a time; imported only where Triton is. Products and sums are
rounded one by one, as separate kernels round them, so that the bits are those of the reference: launch with
enable_fp_fusion=False. bf16 scales are read and written as their bits.

emulated: numbers of the model are bf16 given as int16, for Triton's interpreter, which cuts where a device rounds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _wide(x: tl.tensor, emulated: tl.constexpr) -> tl.tensor:
    return (x.to(tl.int32) << 16).to(tl.float32, bitcast=True) if emulated else x.to(tl.float32)


@triton.jit
def _narrow(x: tl.tensor, dtype: tl.constexpr, emulated: tl.constexpr) -> tl.tensor:
    if emulated:
        bits = x.to(tl.int32, bitcast=True)
        found = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)
    else:
        found = x.to(dtype)
    return found


@triton.jit
def _scale(bits: tl.tensor) -> tl.tensor:
    """bf16 bits to fp32."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _scale_bits(exact: tl.tensor) -> tl.tensor:
    """The bits of the least bf16 that is not below a number of 0 or more."""
    return ((exact.to(tl.int32, bitcast=True) + 0xFFFF) >> 16).to(tl.int16)


@triton.jit
def _largest(x: tl.tensor, axis: tl.constexpr) -> tl.tensor:
    """Of magnitudes along an axis; NaN if one of them is."""
    n_nan = tl.sum(tl.where(x == x, 0, 1), axis)
    return tl.where(n_nan > 0, float("nan"), tl.max(tl.abs(x), axis))


@triton.jit
def _codes(x: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """Round half to even: at this size fp32 has no fractions."""
    q = tl.div_rn(x, tl.where(scale == 0.0, 1.0, scale))
    return ((q + 12582912.0) - 12582912.0).to(tl.int8)


@triton.jit
def decode_pages(
    codes: tl.tensor,  # int8, rows of `row_bytes`
    scales: tl.tensor,  # the same memory as int16
    row_bytes: tl.tensor,
    value_codes_at: tl.tensor,
    key_scales_at: tl.tensor,  # in int16
    value_scales_at: tl.tensor,
    cos: tl.tensor,  # fp32 [pages * 64, 2 * half]
    sin: tl.tensor,
    bias: tl.tensor,  # fp32 [layers, heads, head_dim]
    turn_cos: tl.tensor,  # fp32 [turns, 2 * half]
    turn_sin: tl.tensor,
    places: tl.tensor,  # int32 [pages, 4]: slot of token 0, first token, end, turn or -1
    keys: tl.tensor,
    values: tl.tensor,
    key_layer: tl.tensor,  # strides in numbers
    key_head: tl.tensor,
    key_slot: tl.tensor,
    value_layer: tl.tensor,
    value_head: tl.tensor,
    value_slot: tl.tensor,
    n_heads: tl.tensor,
    half: tl.constexpr,
    block: tl.constexpr,
    page_tokens: tl.constexpr,
    together: tl.constexpr,
    has_bias: tl.constexpr,
    emulated: tl.constexpr,
) -> None:
    """Program (page, `together` heads of a layer, keys or values): codes to numbers in their slots."""
    page = tl.program_id(0).to(tl.int64)
    groups = n_heads // together
    layer = (tl.program_id(1) // groups).to(tl.int64)
    first_head = tl.program_id(1) % groups * together
    slot = tl.load(places + page * 4).to(tl.int64)
    lo = tl.load(places + page * 4 + 1)
    hi = tl.load(places + page * 4 + 2)
    turn = tl.load(places + page * 4 + 3).to(tl.int64)
    t = tl.arange(0, page_tokens)[:, None]
    d = tl.arange(0, block)[None, :]
    mask = d < half
    wanted = mask & (t >= lo) & (t < hi)
    codes += page * row_bytes
    scales += page * (row_bytes // 2)
    dim = 2 * half
    if tl.program_id(2) == 0:
        if has_bias:
            table = (page * page_tokens + t) * dim + d
            c = tl.load(cos + table, mask=mask, other=0.0)
            s = tl.load(sin + table, mask=mask, other=0.0)
        if turn >= 0:
            turned_c = tl.load(turn_cos + turn * dim + d, mask=mask, other=0.0)
            turned_s = tl.load(turn_sin + turn * dim + d, mask=mask, other=0.0)
        else:
            turned_c = tl.zeros([1, block], tl.float32)
            turned_s = tl.zeros([1, block], tl.float32)
        for number in range(together):
            head = layer * n_heads + first_head + number
            at = codes + head * page_tokens * dim + t * dim + d
            scale_at = scales + key_scales_at + head * dim + d
            a = tl.load(at, mask=mask, other=0).to(tl.float32) * _scale(tl.load(scale_at, mask=mask, other=0))
            b = tl.load(at + half, mask=mask, other=0).to(tl.float32)
            b = b * _scale(tl.load(scale_at + half, mask=mask, other=0))
            if has_bias:
                bias_a = tl.load(bias + head * dim + d, mask=mask, other=0.0)
                bias_b = tl.load(bias + head * dim + half + d, mask=mask, other=0.0)
                a += bias_a * c - bias_b * s
                b += bias_b * c + bias_a * s
            a = _narrow(a, keys.dtype.element_ty, emulated)
            b = _narrow(b, keys.dtype.element_ty, emulated)
            if turn >= 0:
                wide_a = _wide(a, emulated)
                wide_b = _wide(b, emulated)
                a = _narrow(wide_a * turned_c - wide_b * turned_s, keys.dtype.element_ty, emulated)
                b = _narrow(wide_b * turned_c + wide_a * turned_s, keys.dtype.element_ty, emulated)
            to = keys + layer * key_layer + (first_head + number) * key_head + (slot + t) * key_slot + d
            tl.store(to, a, mask=wanted)
            tl.store(to + half, b, mask=wanted)
    else:
        for number in range(together):
            head = layer * n_heads + first_head + number
            at = codes + value_codes_at + head * page_tokens * dim + t * dim + d
            scale = _scale(tl.load(scales + value_scales_at + head * page_tokens + t))
            a = tl.load(at, mask=mask, other=0).to(tl.float32) * scale
            b = tl.load(at + half, mask=mask, other=0).to(tl.float32) * scale
            to = values + layer * value_layer + (first_head + number) * value_head + (slot + t) * value_slot + d
            tl.store(to, _narrow(a, values.dtype.element_ty, emulated), mask=wanted)
            tl.store(to + half, _narrow(b, values.dtype.element_ty, emulated), mask=wanted)


@triton.jit
def encode_pages(
    keys: tl.tensor,
    values: tl.tensor,
    key_layer: tl.tensor,  # strides in numbers
    key_head: tl.tensor,
    key_slot: tl.tensor,
    value_layer: tl.tensor,
    value_head: tl.tensor,
    value_slot: tl.tensor,
    cos: tl.tensor,  # fp32 [pages * 64, 2 * half]
    sin: tl.tensor,
    bias: tl.tensor,  # fp32 [layers, heads, head_dim]
    codes: tl.tensor,  # int8, rows of `row_bytes`
    scales: tl.tensor,  # the same memory as int16
    row_bytes: tl.tensor,
    value_codes_at: tl.tensor,
    key_scales_at: tl.tensor,  # in int16
    value_scales_at: tl.tensor,
    n_heads: tl.tensor,
    half: tl.constexpr,
    block: tl.constexpr,
    page_tokens: tl.constexpr,
    together: tl.constexpr,
    has_bias: tl.constexpr,
    emulated: tl.constexpr,
) -> None:
    """Program (page, `together` heads of a layer, keys or values): numbers to codes and scales in their row."""
    page = tl.program_id(0).to(tl.int64)
    groups = n_heads // together
    layer = (tl.program_id(1) // groups).to(tl.int64)
    first_head = tl.program_id(1) % groups * together
    t = tl.arange(0, page_tokens)[:, None]
    d = tl.arange(0, block)[None, :]
    mask = d < half
    codes += page * row_bytes
    scales += page * (row_bytes // 2)
    dim = 2 * half
    slot = page * page_tokens + t
    if tl.program_id(2) == 0:
        if has_bias:
            c = tl.load(cos + slot * dim + d, mask=mask, other=0.0)
            s = tl.load(sin + slot * dim + d, mask=mask, other=0.0)
        for number in range(together):
            head = layer * n_heads + first_head + number
            at = keys + layer * key_layer + (first_head + number) * key_head + slot * key_slot + d
            a = _wide(tl.load(at, mask=mask, other=0), emulated)
            b = _wide(tl.load(at + half, mask=mask, other=0), emulated)
            if has_bias:
                bias_a = tl.load(bias + head * dim + d, mask=mask, other=0.0)
                bias_b = tl.load(bias + head * dim + half + d, mask=mask, other=0.0)
                a -= bias_a * c - bias_b * s
                b -= bias_b * c + bias_a * s
            bits_a = _scale_bits(tl.div_rn(_largest(a, 0), tl.full([block], 127.0, tl.float32)))[None, :]
            bits_b = _scale_bits(tl.div_rn(_largest(b, 0), tl.full([block], 127.0, tl.float32)))[None, :]
            scale_to = scales + key_scales_at + head * dim + d
            tl.store(scale_to, bits_a, mask=mask)
            tl.store(scale_to + half, bits_b, mask=mask)
            to = codes + head * page_tokens * dim + t * dim + d
            tl.store(to, _codes(a, _scale(bits_a)), mask=mask)
            tl.store(to + half, _codes(b, _scale(bits_b)), mask=mask)
    else:
        for number in range(together):
            head = layer * n_heads + first_head + number
            at = values + layer * value_layer + (first_head + number) * value_head + slot * value_slot + d
            a = _wide(tl.load(at, mask=mask, other=0), emulated)
            b = _wide(tl.load(at + half, mask=mask, other=0), emulated)
            largest = _largest(tl.where(a == a, tl.maximum(tl.abs(a), tl.abs(b)), a) + tl.where(b == b, 0.0, b), 1)
            bits = _scale_bits(tl.div_rn(largest, tl.full([page_tokens], 127.0, tl.float32)))[:, None]
            tl.store(scales + value_scales_at + head * page_tokens + t, bits)
            to = codes + value_codes_at + head * page_tokens * dim + t * dim + d
            tl.store(to, _codes(a, _scale(bits)), mask=mask)
            tl.store(to + half, _codes(b, _scale(bits)), mask=mask)
