"""A page codec whose work on a GPU is done by kernels: the same bytes and the same numbers as `Int8`, in few launches.

Knows the reference and the kernels; `page_gate.py` says whether it may be used. What lies elsewhere goes to the
reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import torch
from torch import Tensor

from livingkv.codec import KV, Int8, PageBytes
from livingkv.fused_pages import FusedPages
from livingkv.model_rope import Rope
from livingkv.page_places import Place
from livingkv.positions import Rotation
from livingkv.settings import PAGE_TOKENS, CodecName

_PAGES_AT_ONCE = 64
"""Pages whose bytes lie on the device at the same time: about 120 MB of a model of 7 billion weights."""


class FusedInt8:
    """A PageCodec. device_type: where kernels do the work."""

    name: CodecName = "int8"

    def __init__(self, plain: Int8, rope: Rope, pages: FusedPages, device_type: str = "cuda") -> None:
        self._plain = plain
        self._rope = rope
        self._pages = pages
        self._device_type = device_type

    def encode(self, kv: KV, first_token: int) -> list[bytes]:
        """See PageCodec."""
        if self._is_elsewhere(kv.keys):
            return self._plain.encode(kv, first_token)
        return self._plain.pages_of(self._rows(kv, self._by([first_token], kv.keys.shape[2], kv.keys.device), 0))

    def seal(self, kv: KV, first_token: int) -> Tensor:
        """See PageCodec."""
        if self._is_elsewhere(kv.keys):
            return self._plain.seal(kv, first_token)
        by = self._by([first_token], kv.keys.shape[2], kv.keys.device)
        rows = self._rows(kv, by, 0)
        self._write(rows, by, 0, _side_by_side(len(rows)), kv)
        return self._plain.with_headers(rows)

    def decode(self, pages: Iterable[PageBytes], first_tokens: Sequence[int], device: torch.device) -> KV:
        """See PageCodec."""
        if device.type != self._device_type:
            return self._plain.decode(pages, first_tokens, device)
        rows = self._plain.rows_of(pages, len(first_tokens), device)
        return self._numbers(rows, self._by(first_tokens, PAGE_TOKENS, device), 0, self._plain.shape.n_layers)

    def decode_into(self, pages: Iterable[PageBytes], places: Sequence[Place], into: KV, rope: Rope) -> None:
        """See PageCodec."""
        if self._is_elsewhere(into.keys):
            return self._plain.decode_into(pages, places, into, rope)
        waiting, device = iter(pages), into.keys.device
        for index in range(0, len(places), _PAGES_AT_ONCE):
            some = places[index : index + _PAGES_AT_ONCE]
            rows = self._plain.rows_of(islice(waiting, len(some)), len(some), device)
            self._write(rows, self._by([place.first_token for place in some], PAGE_TOKENS, device), 0, some, into)
        return None

    def stored(self, kv: KV, by: Rotation, first_layer: int = 0) -> KV:
        """See PageCodec."""
        if self._is_elsewhere(kv.keys):
            return self._plain.stored(kv, by, first_layer)
        return self._numbers(self._rows(kv, by, first_layer), by, first_layer, kv.keys.shape[0])

    def layer_bytes(self, page: PageBytes, layer: int) -> list[PageBytes]:
        """See PageCodec."""
        return self._plain.layer_bytes(page, layer)

    def decode_layer(self, rows: Tensor, first_token: int, layer: int) -> KV:
        """See PageCodec."""
        if self._is_elsewhere(rows):
            return self._plain.decode_layer(rows, first_token, layer)
        keys, values = self._numbers(rows, self._by([first_token], len(rows) * PAGE_TOKENS, rows.device), layer, 1)
        return KV(keys[0], values[0])

    def _is_elsewhere(self, x: Tensor) -> bool:
        return x.device.type != self._device_type

    def _by(self, first_tokens: Sequence[int], n_tokens: int, device: torch.device) -> Rotation | None:
        return self._plain.rotation(first_tokens, n_tokens, device)

    def _bias(self, first_layer: int, n_layers: int, device: torch.device) -> Tensor | None:
        bias = self._plain.bias(device)
        return None if bias is None else bias[first_layer : first_layer + n_layers]

    def _rows(self, kv: KV, by: Rotation | None, first_layer: int) -> Tensor:
        return self._pages.encode(kv, by, self._bias(first_layer, kv.keys.shape[0], kv.keys.device))

    def _numbers(self, rows: Tensor, by: Rotation | None, first_layer: int, n_layers: int) -> KV:
        _, heads, dim, dtype = self._plain.shape
        size = (n_layers, heads, len(rows) * PAGE_TOKENS, dim)
        into = KV(*(torch.empty(size, dtype=dtype, device=rows.device) for _ in range(2)))
        self._write(rows, by, first_layer, _side_by_side(len(rows)), into)
        return into

    def _write(self, rows: Tensor, by: Rotation | None, first_layer: int, places: Sequence[Place], into: KV) -> None:
        bias = self._bias(first_layer, into.keys.shape[0], rows.device)
        self._pages.decode(rows.contiguous(), by, bias, places, into, self._rope)


def _side_by_side(n_pages: int) -> list[Place]:
    return [Place(0, 0, PAGE_TOKENS, at) for at in range(0, n_pages * PAGE_TOKENS, PAGE_TOKENS)]
