"""8-bit pages decoded on a CPU into the slots where attention reads them, with no copy of codes or of numbers between.

Knows the arithmetic of `Int8` and where its bytes stand in a page; knows no files. `put_decoded` is the reference: the
same operations on the same numbers, so that every bit is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from livingkv.model_rope import Rope
from livingkv.page_layout import KV, PageShape
from livingkv.page_places import Place
from livingkv.positions import Rotation, shift
from livingkv.settings import PAGE_TOKENS


class _Room(NamedTuple):
    """Numbers of one page, fp32 [n_layers, n_kv_heads, 64, head_dim], written over by every page: they stay in a core's
    cache, and memory is taken once."""

    numbers: Tensor
    bias: Tensor
    turned: Tensor


class DirectDecoding:
    """shape, sizes: as `Int8` has them. bias: fp32 [n_layers, n_kv_heads, 1, head_dim] on the CPU, None without."""

    def __init__(self, shape: PageShape, sizes: Sequence[int], bias: Tensor | None) -> None:
        self._shape = shape
        self._sections = list(pairwise(accumulate(sizes, initial=0)))
        self._bias = bias

    def put(self, bodies: Iterable[Tensor], places: Sequence[Place], by: Rotation | None, into: KV, rope: Rope) -> None:
        """What `put_decoded` does.

        bodies: pages without their headers, uint8 [bytes], one for each place; none of them is looked at any more when
        the next one is asked for. by: the rotations of the places' pages, one after the other; None without a bias.
        """
        size = (self._shape.n_layers, self._shape.n_kv_heads, PAGE_TOKENS, self._shape.head_dim)
        room = _Room(*(torch.empty(size) for _ in range(3)))
        swapped = None if by is None else self._swapped_bias(by.cos.shape[-1])
        for number, (body, place) in enumerate(zip(bodies, places, strict=True)):
            keys, values, key_scales, value_scales = (body[lo:hi] for lo, hi in self._sections)
            tokens, slots = slice(place.lo, place.hi), slice(place.slot, place.slot + place.hi - place.lo)
            self._scaled(room, keys, key_scales, (1, size[3]))
            if by is not None and swapped is not None:
                self._add_bias(room, by, number, swapped)
            if place.delta == 0:
                into.keys[:, :, slots] = room.numbers[:, :, tokens]
            else:
                rounded = room.numbers[:, :, tokens].to(self._shape.dtype)
                into.keys[:, :, slots] = shift(rounded, place.delta, rope)
            self._scaled(room, values, value_scales, (PAGE_TOKENS, 1))
            into.values[:, :, slots] = room.numbers[:, :, tokens]

    def _scaled(self, room: _Room, codes: Tensor, scales: Tensor, of_a_head: tuple[int, int]) -> None:
        room.numbers.copy_(codes.view(torch.int8).view(room.numbers.shape))
        aligned = scales.clone().view(torch.bfloat16)  # a page may begin at an odd address
        room.numbers.mul_(aligned.view(*room.numbers.shape[:2], *of_a_head).float())

    def _add_bias(self, room: _Room, by: Rotation, number: int, swapped: Tensor) -> None:
        """R(p)b, as `rotate` computes it; dimensions that are not rotated get b itself."""
        assert self._bias is not None
        dim, tokens = by.cos.shape[-1], slice(number * PAGE_TOKENS, (number + 1) * PAGE_TOKENS)
        whole = room.bias[..., :dim]
        torch.mul(self._bias[..., :dim], by.cos[tokens], out=whole)
        whole.add_(torch.mul(swapped, by.sin[tokens], out=room.turned[..., :dim]))
        room.numbers[..., :dim].add_(whole)
        if dim < self._shape.head_dim:
            room.numbers[..., dim:].add_(self._bias[..., dim:])

    def _swapped_bias(self, dim: int) -> Tensor:
        """What `rotate` multiplies with the sines."""
        assert self._bias is not None
        first, second = self._bias[..., :dim].chunk(2, -1)
        return torch.cat((-second, first), -1)
