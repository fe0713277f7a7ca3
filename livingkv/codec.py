"""Page codecs: keys and values of 64 tokens to bytes and back.

Knows tensors, the model's key bias and its rotary embedding; knows no files. `int8` keeps rotated keys in 8 bits
with one scale per channel and page, values with one scale per token. Keys of Qwen2.5 reach 150 where their median
is 3, nearly all of it the k_proj bias, so the rotated bias R(p)b is subtracted before and added after: exact, and
no calibration (measured in experiments/003_codec). `lossless` keeps the model's dtype; so does the unsealed tail,
whatever the codec.

decode(encode(x)) is a pure function of x, on one device: attending what was stored is what makes a restored session
continue bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from livingkv.device_numbers import numbers_on
from livingkv.direct_decoding import DirectDecoding
from livingkv.errors import RecordDamaged
from livingkv.model_rope import Rope
from livingkv.page_layout import (
    HEADER,
    KV,
    PageBytes,
    PageShape,
    check_header,
    in_place,
    layer_parts,
    page_bytes,
    page_header,
    raw_bytes,
)
from livingkv.page_places import Place, put_decoded
from livingkv.positions import Rotation, rotate, rotation
from livingkv.settings import PAGE_TOKENS, CodecName

__all__ = ["KV", "Int8", "Lossless", "PageBytes", "PageCodec", "PageShape", "make_codec", "page_bytes"]


class PageCodec(Protocol):
    """Turns whole pages into bytes and back. `first_token` is a page's first absolute position, a multiple of 64."""

    name: CodecName

    def encode(self, kv: KV, first_token: int) -> list[bytes]:
        """One bytes object for each page of `kv`, whose token count is a multiple of 64."""
        ...

    def seal(self, kv: KV, first_token: int) -> Tensor:
        """The pages that `encode` makes, uint8 [pages, `page_bytes`] on the device of `kv`, which is not waited for;
        what `decode` gives of them takes the place of the numbers in `kv`."""
        ...

    def decode(self, pages: Iterable[PageBytes], first_tokens: Sequence[int], device: torch.device) -> KV:
        """The pages side by side in the order given. Raises RecordDamaged for bytes of another shape or codec. None of
        them is looked at any more when the next one is asked for."""
        ...

    def decode_into(self, pages: Iterable[PageBytes], places: Sequence[Place], into: KV, rope: Rope) -> None:
        """What `put_decoded` does, to the last bit."""
        ...

    def stored(self, kv: KV, by: Rotation, first_layer: int = 0) -> KV:
        """What `decode` gives of pages that `encode` is given, to the last bit, without their bytes. `kv`: some layers
        of whole pages, the first of them `first_layer`; by: the rotation by the positions of its tokens."""
        ...

    def layer_bytes(self, page: PageBytes, layer: int) -> list[PageBytes]:
        """The parts of a page that hold one layer, not copied, always of the same sizes. Raises as `decode`."""
        ...

    def decode_layer(self, rows: Tensor, first_token: int, layer: int) -> KV:
        """Keys and values [n_kv_heads, tokens, head_dim] of one layer of adjacent pages, the first at `first_token`:
        those of `decode`. `rows`: uint8 [pages, bytes], each the joined `layer_bytes` of a page; on any device."""
        ...


def make_codec(name: CodecName, shape: PageShape, key_bias: Sequence[Tensor | None], rope: Rope) -> PageCodec:
    """The codec called `name`. `key_bias` has one [n_kv_heads, head_dim] tensor or None for each layer."""
    return Int8(shape, key_bias, rope) if name == "int8" else Lossless(shape)


class Lossless:
    """Keys and values as they are, in the model's dtype. Also holds fewer than 64 tokens: the tail."""

    name: CodecName = "lossless"

    def __init__(self, shape: PageShape) -> None:
        self._shape = shape
        self._headers = _Headers("lossless", shape)

    def encode(self, kv: KV, first_token: int) -> list[bytes]:
        """See PageCodec."""
        both = kv.keys.cpu(), kv.values.cpu()  # one copy from the device
        pages = zip(*(torch.split(part, PAGE_TOKENS, 2) for part in both), strict=True)
        return [self.encode_run(KV(keys, values)) for keys, values in pages]

    def seal(self, kv: KV, first_token: int) -> Tensor:
        """See PageCodec."""
        by_page = [part.view(*part.shape[:2], -1, PAGE_TOKENS, part.shape[3]).movedim(2, 0) for part in kv]
        return self._headers.before([part.flatten(1).view(torch.uint8) for part in by_page])

    def run_header(self, n_tokens: int) -> bytes:
        """What `encode_run` puts before the bytes of keys and values."""
        return page_header("lossless", self._shape, n_tokens)

    def encode_run(self, kv: KV) -> bytes:
        """Any number of tokens as one bytes object."""
        return b"".join((self.run_header(kv.keys.shape[2]), raw_bytes(kv.keys), raw_bytes(kv.values)))

    def decode(self, pages: Iterable[PageBytes], first_tokens: Sequence[int], device: torch.device) -> KV:
        """See PageCodec."""
        runs = [self.decode_run(page, device) for page in pages]
        return KV(torch.cat([run.keys for run in runs], 2), torch.cat([run.values for run in runs], 2))

    def decode_into(self, pages: Iterable[PageBytes], places: Sequence[Place], into: KV, rope: Rope) -> None:
        """See PageCodec."""
        put_decoded(self.decode, pages, places, into, rope)

    def stored(self, kv: KV, by: Rotation, first_layer: int = 0) -> KV:
        """See PageCodec: itself."""
        return kv

    def layer_bytes(self, page: PageBytes, layer: int) -> list[PageBytes]:
        """See PageCodec."""
        size = self._shape.n_kv_heads * PAGE_TOKENS * self._shape.head_dim * self._shape.dtype.itemsize
        return layer_parts(page, "lossless", self._shape, [size, size], layer)

    def decode_layer(self, rows: Tensor, first_token: int, layer: int) -> KV:
        """See PageCodec."""
        shape = (2, self._shape.n_kv_heads, PAGE_TOKENS, self._shape.head_dim)
        numbers = rows.view(self._shape.dtype).view(len(rows), *shape).movedim(0, 2).flatten(2, 3)
        return KV(numbers[0], numbers[1])

    def decode_run(self, data: PageBytes, device: torch.device) -> KV:
        """What `encode_run` was given. Raises RecordDamaged for bytes of another shape."""
        tokens = check_header(data, "lossless", self._shape)
        shape = (self._shape.n_layers, self._shape.n_kv_heads, tokens, self._shape.head_dim)
        size = int(np.prod(shape)) * self._shape.dtype.itemsize
        if len(data) != HEADER.size + 2 * size:
            raise RecordDamaged(f"a run of {tokens} tokens has {len(data)} bytes; run `livingkv check`")
        if tokens == 0:
            return KV(*(torch.empty(shape, dtype=self._shape.dtype, device=device) for _ in range(2)))
        body = torch.frombuffer(bytearray(data[HEADER.size :]), dtype=torch.uint8)
        keys, values = (part.view(self._shape.dtype).view(shape).to(device) for part in torch.split(body, size))
        return KV(keys, values)


class _Codes(NamedTuple):
    """Quantized pages, in the order of their bytes: int8 [layers, n_kv_heads, pages, 64, head_dim], and bf16 scales, of
    keys [..., 1, head_dim], of values [..., 64, 1]."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor


class Int8:
    """8-bit pages: symmetric int8, keys per channel over the page, values per token, scales in bf16."""

    name: CodecName = "int8"

    def __init__(self, shape: PageShape, key_bias: Sequence[Tensor | None], rope: Rope) -> None:
        self.shape = shape
        self._rope = rope
        self._bias = _stack_bias(shape, key_bias)
        self._headers = _Headers("int8", shape)
        numbers = shape.n_layers * shape.n_kv_heads * PAGE_TOKENS * shape.head_dim
        heads = shape.n_layers * shape.n_kv_heads
        self.sizes = [numbers, numbers, 2 * heads * shape.head_dim, 2 * heads * PAGE_TOKENS]
        """Bytes of a page's sections: codes of keys, of values, scales of keys, of values."""

    def encode(self, kv: KV, first_token: int) -> list[bytes]:
        """See PageCodec. One copy from the device."""
        return self.pages_of(self.rows(kv, self.rotation([first_token], kv.keys.shape[2], kv.keys.device), 0))

    def seal(self, kv: KV, first_token: int) -> Tensor:
        """See PageCodec."""
        by = self.rotation([first_token], kv.keys.shape[2], kv.keys.device)
        codes = self._quantized(kv, by, 0)
        rows, stored = _row_bytes(codes), self._numbers(codes, by, 0)
        kv.keys.copy_(stored.keys)
        kv.values.copy_(stored.values)
        return self.with_headers(rows)

    def with_headers(self, rows: Tensor) -> Tensor:
        """Whole pages, uint8 [pages, `page_bytes`], from `rows` of all layers."""
        return self._headers.before([rows])

    def decode(self, pages: Iterable[PageBytes], first_tokens: Sequence[int], device: torch.device) -> KV:
        """See PageCodec. All pages at once, each copied to the device from where it lies."""
        rows = self.rows_of(pages, len(first_tokens), device)
        codes = self._codes(rows, self.shape.n_layers)
        return self._numbers(codes, self.rotation(first_tokens, PAGE_TOKENS, device), 0)

    def decode_into(self, pages: Iterable[PageBytes], places: Sequence[Place], into: KV, rope: Rope) -> None:
        """See PageCodec. On a CPU directly, without the steps between."""
        device = into.keys.device
        if device.type != "cpu" or into.keys.dtype != self.shape.dtype:
            put_decoded(self.decode, pages, places, into, rope)
            return
        by = self.rotation([place.first_token for place in places], PAGE_TOKENS, device)
        direct = DirectDecoding(self.shape, self.sizes, self.bias(device))
        direct.put(map(self._body, pages), places, by, into, rope)

    def rows(self, kv: KV, by: Rotation | None, first_layer: int) -> Tensor:
        """What `pages_of` takes: uint8 [pages, bytes] on the device of `kv`; arguments as those of `stored`."""
        return _row_bytes(self._quantized(kv, by, first_layer))

    def pages_of(self, rows: Tensor) -> list[bytes]:
        """Pages of all layers with their headers."""
        header = page_header("int8", self.shape, PAGE_TOKENS)
        return [header + row.tobytes() for row in rows.cpu().numpy()]

    def rows_of(self, pages: Iterable[PageBytes], n_pages: int, device: torch.device) -> Tensor:
        """`n_pages` pages without their headers, uint8 [pages, bytes]. Raises RecordDamaged."""
        rows = torch.empty((n_pages, sum(self.sizes)), dtype=torch.uint8, device=device)
        for row, page in zip(rows, pages, strict=True):
            row.copy_(self._body(page))
        return rows

    def _body(self, page: PageBytes) -> Tensor:
        """A page without its header, uint8 [bytes], in place. Raises RecordDamaged."""
        if check_header(page, "int8", self.shape) != PAGE_TOKENS or len(page) != HEADER.size + sum(self.sizes):
            raise RecordDamaged(f"a page of {len(page)} bytes has not the model's shape; run `livingkv check`")
        return in_place(page[HEADER.size :])

    def stored(self, kv: KV, by: Rotation, first_layer: int = 0) -> KV:
        """See PageCodec."""
        return self._numbers(self._quantized(kv, by, first_layer), by, first_layer)

    def layer_bytes(self, page: PageBytes, layer: int) -> list[PageBytes]:
        """See PageCodec."""
        return layer_parts(page, "int8", self.shape, [size // self.shape.n_layers for size in self.sizes], layer)

    def decode_layer(self, rows: Tensor, first_token: int, layer: int) -> KV:
        """See PageCodec."""
        by = self.rotation([first_token], len(rows) * PAGE_TOKENS, rows.device)
        keys, values = self._numbers(self._codes(rows, 1), by, layer)
        return KV(keys[0], values[0])

    def _codes(self, rows: Tensor, n_layers: int) -> _Codes:
        """Of bytes [pages, bytes] that hold `n_layers` layers."""
        _, heads, dim, _ = self.shape
        parts = torch.split(rows, [size // self.shape.n_layers * n_layers for size in self.sizes], 1)
        codes, shape = (torch.int8, PAGE_TOKENS, dim), (len(rows), n_layers, heads)
        kinds = (codes, codes, (torch.bfloat16, 1, dim), (torch.bfloat16, PAGE_TOKENS, 1))
        typed = [part.view(kind).view(*shape, *size) for part, (kind, *size) in zip(parts, kinds, strict=True)]
        return _Codes(*(part.movedim(0, 2) for part in typed))

    def _quantized(self, kv: KV, by: Rotation | None, first_layer: int) -> _Codes:
        keys, bias = kv.keys.float(), self._rotated_bias(by, first_layer, kv)
        by_page = (*keys.shape[:2], -1, PAGE_TOKENS, self.shape.head_dim)
        key_codes, key_scales = _quantize((keys if bias is None else keys - bias).view(by_page), 3)
        value_codes, value_scales = _quantize(kv.values.float().view(by_page), 4)
        return _Codes(key_codes, value_codes, key_scales, value_scales)

    def _numbers(self, codes: _Codes, by: Rotation | None, first_layer: int) -> KV:
        plain, dtype = torch.contiguous_format, self.shape.dtype
        keys = codes.keys.to(torch.float32, memory_format=plain).mul_(codes.key_scales.float()).flatten(2, 3)
        values = codes.values.to(torch.float32, memory_format=plain).mul_(codes.value_scales.float()).flatten(2, 3)
        bias = self._rotated_bias(by, first_layer, KV(keys, values))
        return KV((keys if bias is None else keys.add_(bias)).to(dtype), values.to(dtype))

    def bias(self, device: torch.device) -> Tensor | None:
        """The biases of keys, fp32 [n_layers, n_kv_heads, 1, head_dim], on that device; None where no layer has one."""
        if self._bias is not None:
            self._bias = self._bias.to(device)  # once: a copy to the device waits for it
        return self._bias

    def rotation(self, first_tokens: Sequence[int], n_tokens: int, device: torch.device) -> Rotation | None:
        """By the positions of runs of `n_tokens`, one after the other; None where there is no bias to rotate."""
        if self._bias is None:
            return None
        firsts = numbers_on(device, first_tokens)
        return rotation((firsts[:, None] + torch.arange(n_tokens, device=device)).flatten(), self._rope)

    def _rotated_bias(self, by: Rotation | None, first_layer: int, kv: KV) -> Tensor | None:
        """R(p)b for the layers and tokens of `kv`: fp32 of its shape."""
        bias = self.bias(kv.keys.device)
        if bias is None:
            return None
        assert by is not None, "keys with a bias have positions"
        n_layers, _, n_tokens, _ = kv.keys.shape
        return rotate(bias[first_layer : first_layer + n_layers].expand(-1, -1, n_tokens, -1), by)


def _row_bytes(codes: _Codes) -> Tensor:
    return torch.cat([part.movedim(2, 0).flatten(1).view(torch.uint8) for part in codes], 1)


def _stack_bias(shape: PageShape, key_bias: Sequence[Tensor | None]) -> Tensor | None:
    """fp32 [n_layers, n_kv_heads, 1, head_dim], zeros where a layer has none; None when no layer has one."""
    if all(bias is None for bias in key_bias):
        return None
    empty = torch.zeros(shape.n_kv_heads, shape.head_dim)
    rows = [empty if bias is None else bias.detach().float().cpu() for bias in key_bias]
    return torch.stack(rows).unsqueeze(2)


def _quantize(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """int8 codes of fp32 `x` and bf16 scales, shared along `dim`; scales are rounded up, so that no code overflows."""
    largest = x.abs().amax(dim, keepdim=True)
    exact = largest / torch.full_like(largest, 127.0)  # by a number a GPU divides less exactly
    scale = exact.to(torch.bfloat16)
    bits = scale.view(torch.int16)
    scale = torch.where(scale.float() < exact, bits + 1, bits).view(torch.bfloat16)
    divisor = torch.where(scale == 0, 1.0, scale.float())
    return (x / divisor).round_().to(torch.int8), scale


class _Headers:
    """The header of a whole page as a tensor, copied to each device once: a copy to a device waits for it."""

    def __init__(self, name: CodecName, shape: PageShape) -> None:
        self._header = torch.frombuffer(bytearray(page_header(name, shape, PAGE_TOKENS)), dtype=torch.uint8)
        self._copies: dict[torch.device, Tensor] = {}

    def before(self, parts: Sequence[Tensor]) -> Tensor:
        """Whole pages, uint8 [pages, bytes], from their sections [pages, bytes]."""
        device, n_pages = parts[0].device, len(parts[0])
        if device not in self._copies:
            self._copies[device] = self._header.to(device)
        return torch.cat((self._copies[device].expand(n_pages, -1), *parts), 1)
