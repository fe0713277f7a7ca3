"""Tensors as blocks of bytes and views of them: copied out of a living cache and back into one, aliasing kept.

A view that shares no memory with another is packed densely in a block of its own; views that overlap keep the span of
memory that they share, in one block. Blocks lie at the address modulo 64 at which their tensors lay, because sums of
fp32 differ in their last bits with it (docs/decisions/0020). Knows torch's memory; refuses to know caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from livingkv.errors import UnsupportedModel
from livingkv.experts.formats import TORCH_TYPES
from livingkv.experts.layout import ALIGNMENT

_NAMES = {dtype: name for name, dtype in TORCH_TYPES.items()}


class View(NamedTuple):
    """A tensor over a block. strides: in elements; offset: in bytes."""

    block: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    device: str


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes on the CPU, uint8 [n], at an address that is `residue` modulo ALIGNMENT."""

    data: Tensor
    residue: int

    @property
    def n_bytes(self) -> int:
        """How many."""
        return self.data.numel()


class _Span(NamedTuple):
    """Bytes `[lo, hi)` of the address space, and the tensors in them by number."""

    lo: int
    hi: int
    members: tuple[int, ...]


def room(n_bytes: int, residue: int, device: torch.device | str = "cpu") -> Tensor:
    """New memory, uint8 [n_bytes], at that address modulo ALIGNMENT."""
    memory = torch.empty(n_bytes + ALIGNMENT, dtype=torch.uint8, device=device)
    start = (residue - memory.data_ptr()) % ALIGNMENT
    return memory[start : start + n_bytes]


def packed(tensors: Sequence[Tensor]) -> tuple[list[Block], list[View]]:
    """Copies of the tensors' memory, a view for each tensor. UnsupportedModel for kinds that are not plain bytes."""
    blocks: list[Block] = []
    views: dict[int, View] = {}
    for span in _spans(tensors):
        first = tensors[span.members[0]]
        same = {_place(tensors[number]) for number in span.members}
        if len(same) == 1:
            dense = first.detach()
            if not dense.is_contiguous():
                dense = dense.clone(memory_format=torch.preserve_format)
            source = dense.as_strided((dense.numel(),), (1,)) if dense.numel() else dense.flatten()
            raw, residue, strides = source.view(torch.uint8), first.data_ptr() % ALIGNMENT, dense.stride()
        else:
            raw, residue, strides = _bytes_of(first, span), span.lo % ALIGNMENT, None
        data = room(raw.numel(), residue)
        data.copy_(raw)
        for number in span.members:
            one = tensors[number]
            offset = 0 if strides is not None else one.data_ptr() - span.lo
            views[number] = View(
                len(blocks), _name(one), tuple(one.shape), tuple(strides or one.stride()), offset, one.device.type
            )
        blocks.append(Block(data, residue))
    return blocks, [views[number] for number in range(len(tensors))]


def unpacked(blocks: Sequence[Block], views: Sequence[View], device: torch.device) -> list[Tensor]:
    """The tensors in new memory; equal views are one tensor. Views of the CPU stay there, others go to `device`.

    Returns when all of them are there: copies to a device are queued one after the other and waited for once.
    """
    memory: dict[tuple[int, bool], Tensor] = {}
    made: dict[View, Tensor] = {}
    for view in views:
        if view in made:
            continue
        block = blocks[view.block]
        on_cpu = view.device == "cpu"
        if (view.block, on_cpu) not in memory:
            target = room(block.n_bytes, block.residue, "cpu" if on_cpu else device)
            memory[view.block, on_cpu] = target.copy_(block.data, non_blocking=True)
        dtype = TORCH_TYPES[view.dtype]
        start = memory[view.block, on_cpu][view.offset :]
        whole = start[: start.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        made[view] = whole.as_strided(view.shape, view.strides, whole.storage_offset())
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return [made[view] for view in views]


def reach(view: View) -> int:
    """The end of the last byte that a view reads of its block."""
    if 0 in view.shape:
        return view.offset
    last = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    return view.offset + (last + 1) * TORCH_TYPES[view.dtype].itemsize


def _spans(tensors: Sequence[Tensor]) -> list[_Span]:
    """The tensors grouped by overlap in memory, in the order of their first member."""
    parts: list[_Span] = []
    for number, one in enumerate(tensors):
        if type(one) is not Tensor or one.layout != torch.strided or one.dtype not in _NAMES:
            raise UnsupportedModel(f"a state of {type(one).__name__} {one.dtype} cannot be kept in a snapshot")
        lo = one.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
        hi = lo + (last + 1) * one.element_size() if one.numel() else lo
        parts.append(_Span(lo, hi, (number,)))
    spans: list[_Span] = [part for part in parts if part.lo == part.hi]
    open_span: _Span | None = None
    for part in sorted(part for part in parts if part.lo != part.hi):
        if open_span is not None and part.lo < open_span.hi and _same_device(tensors, open_span, part):
            open_span = _Span(open_span.lo, max(open_span.hi, part.hi), open_span.members + part.members)
            continue
        if open_span is not None:
            spans.append(open_span)
        open_span = part
    if open_span is not None:
        spans.append(open_span)
    return sorted(spans, key=lambda span: min(span.members))


def _same_device(tensors: Sequence[Tensor], one: _Span, other: _Span) -> bool:
    return tensors[one.members[0]].device == tensors[other.members[0]].device


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _bytes_of(tensor: Tensor, span: _Span) -> Tensor:
    """The bytes of a span, of which `tensor` is a member: its storage holds them all."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    start = span.lo - storage.data_ptr()
    found: Tensor = whole[start : start + span.hi - span.lo]
    return found


def _name(tensor: Tensor) -> str:
    return _NAMES[tensor.dtype]
