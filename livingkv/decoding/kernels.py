"""Triton kernels of a decode step. Imported only where Triton is; the torch references are in attending.py and ops.py.

Attention is split over the keys (Flash-Decoding, pytorch.org/blog/flash-decoding): each program takes a stretch of one
row's slots for one key head, and a second kernel merges stretches by log-sum-exp. The stretch that ends with the row's
own slot rotates the new key, uses it and writes it. Which slots, by which query: read from the table on the device.
"""

# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from livingkv.decoding import table

CAPACITY = tl.constexpr(table.CAPACITY)
START = tl.constexpr(table.START)
END = tl.constexpr(table.END)
HI = tl.constexpr(table.HI)
KEYS = tl.constexpr(table.KEYS)
VALUES = tl.constexpr(table.VALUES)
RUNS = tl.constexpr(table.MAX_RUNS)
FIELDS = tl.constexpr(table.N_FIELDS)


@triton.jit(do_not_specialize=["layer"])
def attend_stretch(
    query_ptr,
    key_ptr,
    value_ptr,
    query_stride,
    key_stride,
    value_stride,
    query_norm_ptr,
    key_norm_ptr,
    epsilon,
    cos_ptr,
    sin_ptr,
    factor_ptr,
    table_ptr,
    keys_ptr,
    values_ptr,
    out_ptr,
    lse_ptr,
    layer,
    scale,
    NORMED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    HALF: tl.constexpr,
    STRETCHES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One stretch of one row and key head: out fp32 [rows, heads, STRETCHES, DIM], lse fp32 [rows, heads, STRETCHES].

    GROUP query heads for a key head, ROWS of them computed; DIM of a head, WIDE the power of two that holds it, 2 *
    HALF of it rotated. Empty stretches have an lse of minus infinity.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    stretch = tl.program_id(2)
    dtype = query_ptr.dtype.element_ty
    fields = table_ptr + row * FIELDS
    start = tl.load(fields + START)
    end = tl.load(fields + END)
    base = (layer * KV_HEADS + head) * tl.load(fields + CAPACITY) * DIM
    keys = keys_ptr + tl.multiple_of(tl.load(fields + KEYS), 16) + base
    values = values_ptr + tl.multiple_of(tl.load(fields + VALUES), 16) + base

    size = tl.cdiv(tl.cdiv(end + 1 - start, STRETCHES), BLOCK) * BLOCK
    lo = start + stretch * size
    hi = tl.minimum(lo + size, end + 1)

    d = tl.arange(0, WIDE)
    inside = d < DIM
    turned = d < 2 * HALF
    other = tl.where(d < HALF, d + HALF, tl.where(turned, d - HALF, d))
    sign = tl.where(d < HALF, -1.0, 1.0)
    angle = tl.where(turned, d % HALF, 0)
    group = tl.arange(0, ROWS)
    heads = head * GROUP + group
    real = (group < GROUP)[:, None] & inside[None, :]

    # the queries as they are and with the halves of the rotated part changed over
    at = query_ptr + row * query_stride + heads[:, None] * DIM
    query = tl.load(at + d[None, :], mask=real, other=0.0).to(tl.float32)
    changed = tl.load(at + other[None, :], mask=real, other=0.0).to(tl.float32)
    own = row * RUNS * HALF + (RUNS - 1) * HALF + angle
    own_cos = tl.load(cos_ptr + own, mask=turned, other=1.0)
    own_sin = tl.load(sin_ptr + own, mask=turned, other=0.0)
    key = tl.load(key_ptr + row * key_stride + head * DIM + d, mask=inside, other=0.0).to(tl.float32)
    key_changed = tl.load(key_ptr + row * key_stride + head * DIM + other, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        rms = tl.rsqrt(tl.sum(query * query, 1) / DIM + epsilon)[:, None]
        weight = tl.load(query_norm_ptr + d, mask=inside, other=0.0)
        weight_changed = tl.load(query_norm_ptr + other, mask=inside, other=0.0)
        query = ((query * rms).to(dtype) * weight[None, :]).to(tl.float32)
        changed = ((changed * rms).to(dtype) * weight_changed[None, :]).to(tl.float32)
        key_rms = tl.rsqrt(tl.sum(key * key, 0) / DIM + epsilon)
        key_weight = tl.load(key_norm_ptr + d, mask=inside, other=0.0)
        key_weight_changed = tl.load(key_norm_ptr + other, mask=inside, other=0.0)
        key = ((key * key_rms).to(dtype) * key_weight).to(tl.float32)
        key_changed = ((key_changed * key_rms).to(dtype) * key_weight_changed).to(tl.float32)
    new_key = (key * own_cos + sign * key_changed * own_sin).to(dtype)
    new_value = tl.load(value_ptr + row * value_stride + head * DIM + d, mask=inside, other=0.0)

    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, WIDE], tl.float32)
    by = scale * tl.load(factor_ptr + row)
    run_lo = start
    for run in range(RUNS):
        run_hi = tl.load(fields + HI + run)
        first = tl.maximum(run_lo, lo)
        last = tl.minimum(run_hi, hi)
        if first < last:
            place = (row * RUNS + run) * HALF + angle
            cos = tl.load(cos_ptr + place, mask=turned, other=1.0)
            sin = tl.load(sin_ptr + place, mask=turned, other=0.0)
            queries = (query * cos[None, :] + sign[None, :] * changed * sin[None, :]).to(dtype)
            for block in range(first, last, BLOCK):
                slots = block + tl.arange(0, BLOCK)
                seen = slots < last
                stored = seen & (slots != end)
                is_new = slots == end
                k = tl.load(keys + slots[None, :] * DIM + d[:, None], mask=stored[None, :] & inside[:, None], other=0.0)
                k = tl.where(is_new[None, :], new_key[:, None], k)
                v = tl.load(
                    values + slots[:, None] * DIM + d[None, :], mask=stored[:, None] & inside[None, :], other=0.0
                )
                v = tl.where(is_new[:, None], new_value[None, :], v)
                scores = tl.dot(queries, k, input_precision="ieee") * by
                scores = tl.where(seen[None, :], scores, float("-inf"))
                higher = tl.maximum(most, tl.max(scores, 1))
                fade = tl.exp(most - higher)
                weights = tl.exp(scores - higher[:, None])
                total = total * fade + tl.sum(weights, 1)
                out = out * fade[:, None] + tl.dot(weights.to(dtype), v, input_precision="ieee")
                most = higher
        run_lo = run_hi

    if (lo <= end) & (hi == end + 1):
        tl.store(keys + end * DIM + d, new_key, mask=inside)
        tl.store(values + end * DIM + d, new_value, mask=inside)
    lse = tl.where(total > 0, most + tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))
    out = out / tl.where(total > 0, total, 1.0)[:, None]
    place = (row * KV_HEADS * GROUP + heads) * STRETCHES + stretch
    tl.store(lse_ptr + place, lse, mask=group < GROUP)
    tl.store(out_ptr + place[:, None] * DIM + d[None, :], out, mask=real)


@triton.jit
def merge_stretches(part_ptr, lse_ptr, out_ptr, DIM: tl.constexpr, WIDE: tl.constexpr, STRETCHES: tl.constexpr):
    """out [rows * heads, DIM] from the parts of every head."""
    head = tl.program_id(0)
    d = tl.arange(0, WIDE)
    stretch = tl.arange(0, STRETCHES)
    inside = d < DIM
    lse = tl.load(lse_ptr + head * STRETCHES + stretch)
    weights = tl.exp(lse - tl.max(lse, 0))
    at = part_ptr + (head * STRETCHES + stretch)[:, None] * DIM + d[None, :]
    parts = tl.load(at, mask=(weights > 0)[:, None] & inside[None, :], other=0.0)
    out = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out_ptr + head * DIM + d, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rms_rows(x_ptr, weight_ptr, out_ptr, width, epsilon, WIDE: tl.constexpr):
    """The RMS norm of each row, rounded as `attending.rms_norm` rounds."""
    row = tl.program_id(0)
    d = tl.arange(0, WIDE)
    inside = d < width
    dtype = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * width + d, mask=inside, other=0.0).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / width + epsilon)
    weight = tl.load(weight_ptr + d, mask=inside, other=0.0)
    tl.store(out_ptr + row * width + d, (x.to(dtype) * weight).to(dtype), mask=inside)


@triton.jit
def gate_rows(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    """silu(gate) * up of rows [gate, up] of 2 * width."""
    row = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < width
    dtype = x_ptr.dtype.element_ty
    gate = tl.load(x_ptr + row * 2 * width + d, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * width + width + d, mask=inside, other=0.0)
    silu = (gate / (1.0 + tl.exp(-gate))).to(dtype)
    tl.store(out_ptr + row * width + d, (silu * up).to(dtype), mask=inside)


@triton.jit
def vector_product(
    x_ptr,
    norm_ptr,
    weight_ptr,
    bias_ptr,
    added_ptr,
    out_ptr,
    n_out,
    width,
    epsilon,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    GATED: tl.constexpr,
    EVEN: tl.constexpr,
    OUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """weight [n_out, width] times one vector, OUTS outputs a program, each weight read once.

    NORMED: the vector's RMS norm is multiplied; its scale is one number, which is put on the sums in the end. ADDED:
    plus added [n_out]. GATED: weight is [2 * n_out, width] and silu(first half) * second half comes out. EVEN: BLOCK
    divides width.
    """
    outs = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    real = outs < n_out
    rows = outs.to(tl.int64)[:, None] * width
    sums = tl.zeros([OUTS, BLOCK], tl.float32)
    second = tl.zeros([OUTS, BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for lo in tl.range(0, width, BLOCK, num_stages=STAGES):
        d = lo + tl.arange(0, BLOCK)
        if EVEN:
            weights = tl.load(weight_ptr + rows + d[None, :], mask=real[:, None], other=0.0)
            x = tl.load(x_ptr + d).to(tl.float32)
        else:
            weights = tl.load(weight_ptr + rows + d[None, :], mask=real[:, None] & (d < width)[None, :], other=0.0)
            x = tl.load(x_ptr + d, mask=d < width, other=0.0).to(tl.float32)
        if GATED:
            more = weight_ptr + n_out.to(tl.int64) * width + rows + d[None, :]
            if EVEN:
                ups = tl.load(more, mask=real[:, None], other=0.0)
            else:
                ups = tl.load(more, mask=real[:, None] & (d < width)[None, :], other=0.0)
        if NORMED:
            squares += x * x
            x = x * tl.load(norm_ptr + d, mask=d < width, other=0.0).to(tl.float32)
        sums += weights.to(tl.float32) * x[None, :]
        if GATED:
            second += ups.to(tl.float32) * x[None, :]
    out = tl.sum(sums, 1)
    up = tl.sum(second, 1)
    if NORMED:
        by = tl.rsqrt(tl.sum(squares, 0) / width + epsilon)
        out = out * by
        up = up * by
    if BIASED:
        out += tl.load(bias_ptr + outs, mask=real, other=0.0).to(tl.float32)
    if GATED:
        out = out / (1.0 + tl.exp(-out)) * up
    if ADDED:
        out += tl.load(added_ptr + outs, mask=real, other=0.0).to(tl.float32)
    tl.store(out_ptr + outs, out.to(out_ptr.dtype.element_ty), mask=real)


@triton.jit
def rows_product(
    x_ptr,
    weight_ptr,
    bias_ptr,
    added_ptr,
    out_ptr,
    n_rows,
    n_out,
    width,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    GATED: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """weight [n_out, width] times up to ROWS vectors x [n_rows, width], each weight read once: out [n_rows, n_out].
    Else as `vector_product`."""
    outs = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    real = outs < n_out
    rows = tl.arange(0, ROWS)
    there = rows < n_rows
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    second = tl.zeros([OUTS, ROWS], tl.float32)
    starts = outs.to(tl.int64)[:, None] * width
    for lo in range(0, width, BLOCK):
        d = lo + tl.arange(0, BLOCK)
        within = d < width
        x = tl.load(x_ptr + rows[None, :] * width + d[:, None], mask=there[None, :] & within[:, None], other=0.0)
        if EVEN:
            weights = tl.load(weight_ptr + starts + d[None, :], mask=real[:, None], other=0.0)
        else:
            weights = tl.load(weight_ptr + starts + d[None, :], mask=real[:, None] & within[None, :], other=0.0)
        sums = tl.dot(weights, x, sums, input_precision="ieee")
        if GATED:
            more = weight_ptr + n_out.to(tl.int64) * width + starts + d[None, :]
            if EVEN:
                ups = tl.load(more, mask=real[:, None], other=0.0)
            else:
                ups = tl.load(more, mask=real[:, None] & within[None, :], other=0.0)
            second = tl.dot(ups, x, second, input_precision="ieee")
    at = rows[None, :] * n_out + outs[:, None]
    every = real[:, None] & there[None, :]
    if BIASED:
        sums += tl.load(bias_ptr + outs, mask=real, other=0.0).to(tl.float32)[:, None]
    if GATED:
        sums = sums / (1.0 + tl.exp(-sums)) * second
    if ADDED:
        sums += tl.load(added_ptr + at, mask=every, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, sums.to(out_ptr.dtype.element_ty), mask=every)
