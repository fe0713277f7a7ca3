"""What the bytes of a page are: a header, then keys and values of 64 tokens.

Knows shapes and bytes; knows no codec's numbers. Corrupt bytes raise here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from livingkv.errors import RecordDamaged
from livingkv.settings import PAGE_TOKENS, CodecName

HEADER = struct.Struct("<4sBBHHHHH")
_MAGIC = b"KVP1"
_DTYPES = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3}
_CODEC_IDS = {"lossless": 0, "int8": 1}


PageBytes = bytes | memoryview
"""A page as bytes, or where it lies in memory; a writable view is read in place, and not kept."""


class PageShape(NamedTuple):
    """What a page holds: keys and values [n_layers, n_kv_heads, tokens, head_dim] of `dtype`."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    dtype: torch.dtype


class KV(NamedTuple):
    """Keys and values of a run of tokens, each [n_layers, n_kv_heads, tokens, head_dim]."""

    keys: Tensor
    values: Tensor


def page_bytes(name: CodecName, shape: PageShape) -> int:
    """Bytes of one page, header included."""
    numbers = 2 * shape.n_layers * shape.n_kv_heads * PAGE_TOKENS * shape.head_dim
    if name == "lossless":
        return HEADER.size + numbers * shape.dtype.itemsize
    scales = shape.n_layers * shape.n_kv_heads * (shape.head_dim + PAGE_TOKENS)
    return HEADER.size + numbers + 2 * scales


def layer_parts(
    page: PageBytes, name: CodecName, shape: PageShape, sizes: Sequence[int], layer: int
) -> list[PageBytes]:
    """Of each section of a page, layers one after the other in it, the bytes of one layer; `sizes`: those, by
    section."""
    if check_header(page, name, shape) != PAGE_TOKENS or len(page) != HEADER.size + sum(sizes) * shape.n_layers:
        raise RecordDamaged(f"a page of {len(page)} bytes has not the model's shape; run `livingkv check`")
    parts, section = [], HEADER.size
    for size in sizes:
        parts.append(page[section + layer * size : section + (layer + 1) * size])
        section += size * shape.n_layers
    return parts


def in_place(data: PageBytes) -> Tensor:
    """uint8 over the same memory; over a copy where that may not be written, since PyTorch has no read-only tensors."""
    writable = isinstance(data, memoryview) and not data.readonly
    return torch.frombuffer(data if writable else bytearray(data), dtype=torch.uint8)


def raw_bytes(x: Tensor) -> bytes:
    """The numbers in their order, from any device."""
    flat = x.detach().contiguous().cpu().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def page_header(name: CodecName, shape: PageShape, tokens: int) -> bytes:
    """What every page of that codec and shape begins with."""
    fields = (_CODEC_IDS[name], _DTYPES[shape.dtype], 0, shape.n_layers, shape.n_kv_heads, tokens, shape.head_dim)
    return HEADER.pack(_MAGIC, *fields)


def check_header(data: PageBytes, name: CodecName, shape: PageShape) -> int:
    """The token count that the header states. Raises RecordDamaged when anything else in it is not as expected."""
    if len(data) < HEADER.size:
        raise RecordDamaged(f"a page has only {len(data)} bytes; run `livingkv check`")
    tokens = int(HEADER.unpack_from(data)[6])
    if bytes(data[: HEADER.size]) != page_header(name, shape, tokens):
        raise RecordDamaged("a page has another codec or shape than this model; run `livingkv check`")
    return tokens
