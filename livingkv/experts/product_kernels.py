"""Products of a few tokens with a matrix that stays codes: decoded in registers, value by value as `codings.py` says.

Knows pointers and the three formats; imported only where Triton is. A value is rounded to the type of the hidden states
before it is multiplied, as the reference rounds it; sums are fp32, and only their order differs.

emulated: hidden states are bf16 given as int16, for Triton's interpreter, which cuts where a device rounds and cannot
multiply bf16.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _wide(x: tl.tensor) -> tl.tensor:
    """bf16 as int16 to fp32."""
    return (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _rounded_bits(x: tl.tensor) -> tl.tensor:
    """fp32 to the bits of bf16."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)


@triton.jit
def _added(sums: tl.tensor, hidden: tl.tensor, weights: tl.tensor, emulated: tl.constexpr) -> tl.tensor:
    """sums [tokens, rows] + hidden [tokens, values] times fp32 weights [rows, values], rounded to hidden's type."""
    if emulated:
        sums = tl.dot(_wide(hidden), tl.trans(_wide(_rounded_bits(weights))), sums, input_precision="ieee")
    else:
        sums = tl.dot(hidden, tl.trans(weights.to(hidden.dtype)), sums, input_precision="ieee")
    return sums


@triton.jit
def _e2m1(codes: tl.tensor) -> tl.tensor:
    """The code's bits at their place in fp32, whose exponent has another bias: 2**126 moves it, subnormals too."""
    bits = ((codes & 7) << 22) | ((codes & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def _e4m3(codes: tl.tensor) -> tl.tensor:
    """As `_e2m1`, by 2**120; 127 is NaN."""
    bits = ((codes & 127) << 20) | ((codes & 128) << 24)
    values = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    return tl.where((codes & 127) == 127, float("nan"), values)


@triton.jit
def _e8m0(codes: tl.tensor) -> tl.tensor:
    bits = tl.where(codes == 0, 1 << 22, codes << 23)
    return tl.where(codes == 255, float("nan"), bits.to(tl.float32, bitcast=True))


@triton.jit
def _by_group(
    values: tl.tensor, scales: tl.tensor, rows: tl.constexpr, groups: tl.constexpr, group: tl.constexpr
) -> tl.tensor:
    """values [rows, groups * group] times scales [rows, groups]."""
    scaled = tl.reshape(values, [rows, groups, group]) * tl.expand_dims(scales, 2)
    return tl.reshape(scaled, [rows, groups * group])


@triton.jit
def fp4_product(
    hidden: tl.tensor,  # [tokens, into]
    out: tl.tensor,  # [tokens, n_rows]
    codes_0: tl.tensor,  # uint8 [rows, into / 2], the low half first
    scales_0: tl.tensor,  # uint8 [rows, into / (2 * group)]
    whole_0: tl.tensor,  # fp32, one number
    codes_1: tl.tensor,  # of the second piece, whose rows follow those of the first
    scales_1: tl.tensor,
    whole_1: tl.tensor,
    n_tokens: tl.tensor,
    into: tl.tensor,
    rows_0: tl.tensor,
    n_rows: tl.tensor,
    group: tl.constexpr,  # bytes that share a scale
    scaling: tl.constexpr,  # "power", "times" or "over"
    block_rows: tl.constexpr,
    block_bytes: tl.constexpr,
    emulated: tl.constexpr,
) -> None:
    """MXFP4 (scaling "power") and NVFP4: 16 tokens at most, some rows of the matrix for each program."""
    blocks_0 = tl.cdiv(rows_0, block_rows)
    block = tl.program_id(0)
    if block < blocks_0:
        codes = codes_0
        scales = scales_0
        whole = whole_0
        first = 0
        end = rows_0
    else:
        codes = codes_1
        scales = scales_1
        whole = whole_1
        first = rows_0
        end = n_rows - rows_0
        block = block - blocks_0
    row = (block * block_rows + tl.arange(0, block_rows))[:, None]
    token = tl.arange(0, 16)[:, None]
    row_bytes = into // 2
    n_groups = row_bytes // group
    groups: tl.constexpr = block_bytes // group
    sums = tl.zeros([16, block_rows], tl.float32)
    for start in range(0, row_bytes, block_bytes):
        at = start + tl.arange(0, block_bytes)[None, :]
        packed = tl.load(codes + row * row_bytes + at, mask=(row < end) & (at < row_bytes), other=0).to(tl.int32)
        number = start // group + tl.arange(0, groups)[None, :]
        scale = tl.load(scales + row * n_groups + number, mask=(row < end) & (number < n_groups), other=0)
        if scaling == "power":
            factor = _e8m0(scale.to(tl.int32))
        elif scaling == "times":
            factor = _e4m3(scale.to(tl.int32)) * tl.load(whole)
        else:
            eighths = _e4m3(scale.to(tl.int32))
            factor = tl.div_rn(eighths, tl.zeros_like(eighths) + tl.load(whole))
        both = 2 * start + tl.arange(0, 2 * block_bytes)[None, :]
        x = tl.load(hidden + token * into + both, mask=(token < n_tokens) & (both < into), other=0)
        even, odd = tl.split(tl.reshape(x, [16, block_bytes, 2]))
        sums = _added(sums, even, _by_group(_e2m1(packed & 15), factor, block_rows, groups, group), emulated)
        sums = _added(sums, odd, _by_group(_e2m1(packed >> 4), factor, block_rows, groups, group), emulated)
    to = out + token * n_rows + first + tl.trans(row)
    is_wanted = (token < n_tokens) & (tl.trans(row) < end)
    found = _rounded_bits(sums) if emulated else sums.to(out.dtype.element_ty)
    tl.store(to, found, mask=is_wanted)


@triton.jit
def fp8_product(
    hidden: tl.tensor,  # [tokens, into]
    out: tl.tensor,  # [tokens, n_rows]
    codes_0: tl.tensor,  # uint8 [rows, into]
    scales_0: tl.tensor,  # fp32 [rows / 128, into / 128], both rounded up
    codes_1: tl.tensor,  # of the second piece, whose rows follow those of the first
    scales_1: tl.tensor,
    n_tokens: tl.tensor,
    into: tl.tensor,
    rows_0: tl.tensor,
    n_rows: tl.tensor,
    group: tl.constexpr,  # rows, and values of a row, that share a scale
    block_rows: tl.constexpr,
    block_values: tl.constexpr,
    emulated: tl.constexpr,
) -> None:
    """Block-scaled FP8: as `fp4_product`."""
    blocks_0 = tl.cdiv(rows_0, block_rows)
    block = tl.program_id(0)
    if block < blocks_0:
        codes = codes_0
        scales = scales_0
        first = 0
        end = rows_0
    else:
        codes = codes_1
        scales = scales_1
        first = rows_0
        end = n_rows - rows_0
        block = block - blocks_0
    row = (block * block_rows + tl.arange(0, block_rows))[:, None]
    token = tl.arange(0, 16)[:, None]
    n_groups = tl.cdiv(into, group)
    groups: tl.constexpr = block_values // group
    sums = tl.zeros([16, block_rows], tl.float32)
    for start in range(0, into, block_values):
        at = start + tl.arange(0, block_values)[None, :]
        packed = tl.load(codes + row * into + at, mask=(row < end) & (at < into), other=0).to(tl.int32)
        number = start // group + tl.arange(0, groups)[None, :]
        scale = tl.load(scales + row // group * n_groups + number, mask=(row < end) & (number < n_groups), other=0.0)
        x = tl.load(hidden + token * into + at, mask=(token < n_tokens) & (at < into), other=0)
        sums = _added(sums, x, _by_group(_e4m3(packed), scale, block_rows, groups, group), emulated)
    to = out + token * n_rows + first + tl.trans(row)
    is_wanted = (token < n_tokens) & (tl.trans(row) < end)
    found = _rounded_bits(sums) if emulated else sums.to(out.dtype.element_ty)
    tl.store(to, found, mask=is_wanted)
