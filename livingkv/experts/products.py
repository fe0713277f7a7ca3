"""The product of a few tokens with a matrix in codes, without decoding the matrix first: kernels and their arguments.

Knows codings and parts; refuses to know experts. What it gives may differ from the reference in the order of sums:
`kernel_gate.accept_product` says by how much, and whether it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from livingkv.experts.codings import CODES, GLOBAL_DIVISOR, GLOBAL_SCALE, SCALES, BlockFp8, Coding, Mxfp4, Nvfp4
from livingkv.experts.kernel_gate import Accelerated, Product
from livingkv.experts.product_kernels import fp4_product, fp8_product

_ROWS = 16
_BYTES = 256
_GROUPS = {BlockFp8: 128, Mxfp4: 16, Nvfp4: 8}
"""Bytes of codes in a row that share a scale."""


def product_of(coding: Coding, *, interpreted: bool = False) -> Product | None:
    """The kernel for a coding, None where there is none. interpreted: run by Triton's interpreter on a CPU."""
    reference = coding.reference if isinstance(coding, Accelerated) else coding
    if isinstance(reference, BlockFp8) and reference.block == _GROUPS[BlockFp8]:
        return KernelProduct(BlockFp8, interpreted)
    if isinstance(reference, (Mxfp4, Nvfp4)):
        return KernelProduct(type(reference), interpreted)
    return None


@dataclass(frozen=True, slots=True)
class KernelProduct:
    """A Product of one coding."""

    kind: type[BlockFp8 | Mxfp4 | Nvfp4]
    interpreted: bool = False
    most_tokens: int = 16

    def __call__(self, hidden: Tensor, pieces: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """See Product. One launch."""
        assert len(hidden) <= self.most_tokens and len(pieces) <= 2, "few tokens, one or two pieces"
        hidden = hidden.contiguous()
        rows = [piece[CODES].shape[0] for piece in pieces]
        out = torch.empty((len(hidden), sum(rows)), dtype=hidden.dtype, device=hidden.device)
        emulated = self.interpreted and hidden.dtype == torch.bfloat16
        both = [part.view(torch.int16) if emulated else part for part in (hidden, out)]
        sizes = (len(hidden), hidden.shape[1], rows[0], sum(rows))
        grid = (sum(-(-n_rows // _ROWS) for n_rows in rows),)
        kernel = fp8_product if self.kind is BlockFp8 else fp4_product
        parts = [part for piece in (pieces[0], pieces[-1]) for part in self._parts(piece)]
        options = {"emulated": emulated, "num_warps": 4, "enable_fp_fusion": False}
        kernel[grid](*both, *parts, *sizes, **self._shapes(pieces[0], hidden.shape[1]), **options)
        return out

    def _parts(self, piece: Mapping[str, Tensor]) -> list[Tensor]:
        codes, scales = piece[CODES].view(torch.uint8), piece[SCALES]
        if self.kind is BlockFp8:
            return [codes, scales.float()]
        eighths = scales.view(torch.uint8)
        whole = piece.get(GLOBAL_SCALE, piece.get(GLOBAL_DIVISOR, eighths))  # powers of two have none: any pointer
        return [codes, eighths, whole]

    def _shapes(self, piece: Mapping[str, Tensor], into: int) -> dict[str, Any]:
        group = _GROUPS[self.kind]
        if self.kind is BlockFp8:
            return {"group": group, "block_rows": _ROWS, "block_values": _BYTES}
        scaling = "power" if self.kind is Mxfp4 else "times" if GLOBAL_SCALE in piece else "over"
        block = min(_BYTES, max(16, 1 << (into // 2 - 1).bit_length()))
        return {"group": group, "scaling": scaling, "block_rows": _ROWS, "block_bytes": block}
