"""8-bit pages on a GPU, each step in one launch instead of dozens: what `Int8` computes, to the last bit.

Knows the reference, and where the kernels' arguments lie in memory; `page_gate.py` compares before this is used. Head
dimensions must be rotated as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from livingkv.device_numbers import numbers_on
from livingkv.model_rope import Rope
from livingkv.page_kernels import decode_pages, encode_pages
from livingkv.page_layout import KV, PageShape
from livingkv.page_places import Place
from livingkv.positions import Rotation, rotation
from livingkv.settings import PAGE_TOKENS

_MANY_PROGRAMS = 512
"""From so many programs on a GPU is busy: then one does all heads of a layer, and reads the tables of angles once."""


class _Layout(NamedTuple):
    """Where the sections of a row begin: codes of values in bytes, scales in numbers of 16 bits."""

    row_bytes: int
    value_codes: int
    key_scales: int
    value_scales: int

    @classmethod
    def of(cls, shape: PageShape, n_layers: int) -> _Layout:
        heads = n_layers * shape.n_kv_heads
        numbers = heads * PAGE_TOKENS * shape.head_dim
        scales = numbers + heads * shape.head_dim
        return cls(2 * numbers + 2 * heads * (shape.head_dim + PAGE_TOKENS), numbers, numbers, scales)


class FusedPages:
    """Rows of pages, uint8 [pages, bytes] as `Int8.rows` makes them, written and read by kernels.

    interpreted: by Triton's interpreter on a CPU. Tensors of one call lie on one device; nothing is waited for.
    """

    def __init__(self, shape: PageShape, *, interpreted: bool = False) -> None:
        self._shape = shape
        self._interpreted = interpreted

    def encode(self, kv: KV, by: Rotation | None, bias: Tensor | None) -> Tensor:
        """Rows of whole pages, for the layers of `kv`; by: the rotation by their positions. bias: fp32 [n_layers,
        n_kv_heads, 1, head_dim] of those layers, or None."""
        n_layers, _, n_tokens, _ = kv.keys.shape
        layout = _Layout.of(self._shape, n_layers)
        rows = torch.empty((n_tokens // PAGE_TOKENS, layout.row_bytes), dtype=torch.uint8, device=kv.keys.device)
        keys, values = (part if part.stride(-1) == 1 else part.contiguous() for part in kv)
        encode_pages[self._grid(len(rows), n_layers)](
            *self._numbers(keys, values),
            *_tables(by, rows.device),
            _or_any(bias, rows.device),
            *_sections(rows, layout),
            **self._sizes(len(rows), n_layers, bias),
        )
        return rows

    def decode(
        self, rows: Tensor, by: Rotation | None, bias: Tensor | None, places: Sequence[Place], into: KV, rope: Rope
    ) -> None:
        """Write the pages of `rows` into the layers of `into`; places: one for each. by, bias: as for `encode`."""
        assert into.keys.stride(-1) == into.values.stride(-1) == 1, "a token's numbers lie together"
        n_layers, device = into.keys.shape[0], rows.device
        layout = _Layout.of(self._shape, n_layers)
        deltas = sorted({place.delta for place in places} - {0})
        turns = {0: -1} | {delta: number for number, delta in enumerate(deltas)}
        table = [(place.slot - place.lo, place.lo, place.hi, turns[place.delta]) for place in places]
        turned = rotation(numbers_on(device, deltas), rope) if deltas else None
        keys, values, *strides = self._numbers(into.keys, into.values)
        decode_pages[self._grid(len(rows), n_layers)](
            *_sections(rows, layout),
            *_tables(by, device),
            _or_any(bias, device),
            *_tables(turned, device),
            numbers_on(device, table, torch.int32),
            keys,
            values,
            *strides,
            **self._sizes(len(rows), n_layers, bias),
        )

    def _together(self, n_pages: int, n_layers: int) -> int:
        return self._shape.n_kv_heads if 2 * n_pages * n_layers >= _MANY_PROGRAMS else 1

    def _grid(self, n_pages: int, n_layers: int) -> tuple[int, int, int]:
        return n_pages, n_layers * self._shape.n_kv_heads // self._together(n_pages, n_layers), 2

    def _numbers(self, keys: Tensor, values: Tensor) -> list[Any]:
        """Both tensors and their strides of layers, heads and tokens."""
        parts = [keys.view(torch.int16), values.view(torch.int16)] if self._emulated else [keys, values]
        return [*parts, *keys.stride()[:3], *values.stride()[:3]]

    @property
    def _emulated(self) -> bool:
        return self._interpreted and self._shape.dtype == torch.bfloat16

    def _sizes(self, n_pages: int, n_layers: int, bias: Tensor | None) -> dict[str, Any]:
        half = self._shape.head_dim // 2
        return {
            "n_heads": self._shape.n_kv_heads,
            "half": half,
            "block": 1 << (half - 1).bit_length(),
            "page_tokens": PAGE_TOKENS,
            "together": self._together(n_pages, n_layers),
            "has_bias": bias is not None,
            "emulated": self._emulated,
            "num_warps": 8,
            "enable_fp_fusion": False,
        }


def _sections(rows: Tensor, layout: _Layout) -> list[Any]:
    assert rows.is_contiguous() and rows.shape[1] == layout.row_bytes, "rows hold those layers"
    return [rows.view(torch.int8), rows.view(torch.int16), *layout]


def _tables(by: Rotation | None, device: torch.device) -> tuple[Tensor, Tensor]:
    return (_or_any(None, device), _or_any(None, device)) if by is None else (by.cos, by.sin)


def _or_any(table: Tensor | None, device: torch.device) -> Tensor:
    """What is not read must be a pointer all the same."""
    return torch.empty(1, dtype=torch.float32, device=device) if table is None else table.contiguous()
