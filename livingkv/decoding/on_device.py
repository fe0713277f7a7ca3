"""Attention and operations of a decode step by the Triton kernels: the quick ways behind StepAttention and StepOps.

Knows sizes and launches; knows no network. Imported only where Triton is. Scratch buffers are allocated once, for the
largest number of rows, so that every recording uses the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from livingkv.decoding import kernels
from livingkv.decoding.attending import HeadNorms
from livingkv.decoding.ops import FusedOps
from livingkv.decoding.parts import Linear
from livingkv.decoding.table import Angles, Table
from livingkv.plain_network import Norm

_BLOCK_BYTES = 128
"""Slots at once, by the bytes of a number: 64 in bf16."""

PROGRAMS = 256
"""Stretches of attention at a time: two for each multiprocessor of the largest devices."""

_LEAST_ROWS = 16
"""A matrix unit multiplies no fewer."""


class KernelAttention:
    """See StepAttention. Queues two kernels a layer on the current stream. `n_programs`: about so many stretches of all
    rows and key heads together."""

    def __init__(
        self, table: Table, max_rows: int, n_heads: int, *, rotary_dim: int, n_programs: int = PROGRAMS
    ) -> None:
        buffer = table.anchor.keys
        _, self._n_kv_heads, _, self._dim = buffer.shape
        self._n_heads = n_heads
        self._half = rotary_dim // 2
        self._table = table
        self._n_programs = n_programs
        parts = (max(rows * self._n_stretches(rows) for rows in range(1, max_rows + 1)), n_heads)
        self._parts = torch.empty((*parts, self._dim), dtype=torch.float32, device=buffer.device)
        self._lse = torch.empty(parts, dtype=torch.float32, device=buffer.device)
        self._angles: Angles | None = None
        self._factors: Tensor | None = None

    def begin(self, n_rows: int) -> None:
        """See StepAttention."""
        self._angles = self._table.angles(n_rows)
        self._factors = self._table.factors(n_rows)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, norms: HeadNorms | None
    ) -> Tensor:
        """See StepAttention."""
        assert self._angles is not None and self._factors is not None, "begin comes first"
        rows, n_stretches = query.shape[0], self._n_stretches(query.shape[0])
        out = torch.empty((rows, self._n_heads * self._dim), dtype=query.dtype, device=query.device)
        group = self._n_heads // self._n_kv_heads
        anchor = self._table.anchor
        kernels.attend_stretch[(rows, self._n_kv_heads, n_stretches)](
            query,
            key,
            value,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            query if norms is None else norms.query,
            query if norms is None else norms.key,
            0.0 if norms is None else norms.epsilon,
            self._angles.cos,
            self._angles.sin,
            self._factors,
            self._table.device,
            anchor.keys,
            anchor.values,
            self._parts,
            self._lse,
            layer,
            scale,
            NORMED=norms is not None,
            KV_HEADS=self._n_kv_heads,
            GROUP=group,
            ROWS=max(_LEAST_ROWS, triton.next_power_of_2(group)),
            DIM=self._dim,
            WIDE=max(_LEAST_ROWS, triton.next_power_of_2(self._dim)),
            HALF=self._half,
            STRETCHES=n_stretches,
            BLOCK=_BLOCK_BYTES // query.element_size(),
            num_warps=4,
        )
        kernels.merge_stretches[(rows * self._n_heads,)](
            self._parts,
            self._lse,
            out,
            DIM=self._dim,
            WIDE=triton.next_power_of_2(self._dim),
            STRETCHES=n_stretches,
            num_warps=4,
        )
        return out

    def _n_stretches(self, rows: int) -> int:
        return int(min(64, max(2, triton.next_power_of_2(self._n_programs // (rows * self._n_kv_heads)))))


def rms(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`attending.rms_norm` of rows [rows, width]."""
    out = torch.empty_like(x)
    wide = triton.next_power_of_2(x.shape[1])
    n_warps = min(16, max(1, wide // 512))  # a power of two, which Triton asks for
    kernels.rms_rows[(x.shape[0],)](x, weight, out, x.shape[1], epsilon, WIDE=wide, num_warps=n_warps)
    return out


def gate(x: Tensor) -> Tensor:
    """silu(first half) * second half of rows [rows, 2 * width]: [rows, width]."""
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    kernels.gate_rows[(rows, triton.cdiv(width, 1024))](x, out, width, BLOCK=1024, num_warps=4)
    return out


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes of our own products: outputs of one program, numbers of a weight's row at once, and how many such blocks
    are on their way together; for one row, and for several."""

    outs: int = 8
    block: int = 512
    stages: int = 1
    rows_outs: int = 32
    rows_block: int = 128
    rows_stages: int = 4


class KernelOps:
    """See StepOps. Norm, product, gate and residual in one kernel for one row, in two for several; what is packed goes
    through its modules."""

    def __init__(self, tiles: Tiles) -> None:
        self._tiles = tiles
        self._fused = FusedOps(rms, gate)

    def normed(self, x: Tensor, norm: Norm, into: Linear) -> Tensor:
        """See StepOps."""
        if into.weight is None:
            return self._fused.normed(x, norm, into)
        return self._product(x, norm, into, None, gated=False)

    def gated(self, x: Tensor, norm: Norm, into: Linear) -> Tensor:
        """See StepOps."""
        if into.weight is None or into.bias is not None:
            return self._fused.gated(x, norm, into)
        return self._product(x, norm, into, None, gated=True)

    def added(self, x: Tensor, inner: Tensor, into: Linear) -> Tensor:
        """See StepOps."""
        if into.weight is None:
            return self._fused.added(x, inner, into)
        return self._product(inner, None, into, x, gated=False)

    def _product(self, x: Tensor, norm: Norm | None, into: Linear, added: Tensor | None, *, gated: bool) -> Tensor:
        assert into.weight is not None
        tiles = self._tiles
        rows, width = x.shape
        n_out = into.weight.shape[0] // (2 if gated else 1)
        out = torch.empty((rows, n_out), dtype=x.dtype, device=x.device)
        bias, plus = (out if part is None else part for part in (into.bias, added))
        choices = {"BIASED": into.bias is not None, "ADDED": added is not None, "GATED": gated}
        if rows == 1:
            outs, block = tiles.outs // (2 if gated else 1), tiles.block
            kernels.vector_product[(triton.cdiv(n_out, outs),)](
                x,
                x if norm is None else norm.weight,
                into.weight,
                bias,
                plus,
                out,
                n_out,
                width,
                0.0 if norm is None else norm.epsilon,
                NORMED=norm is not None,
                EVEN=width % block == 0,
                OUTS=outs,
                BLOCK=block,
                STAGES=tiles.stages,
                num_warps=4,
                **choices,
            )
            return out
        if norm is not None:
            x = rms(x, norm.weight, norm.epsilon)
        outs, block = max(16, tiles.rows_outs // (2 if gated else 1)), tiles.rows_block
        kernels.rows_product[(triton.cdiv(n_out, outs),)](
            x,
            into.weight,
            bias,
            plus,
            out,
            rows,
            n_out,
            width,
            EVEN=width % block == 0,
            ROWS=max(_LEAST_ROWS, triton.next_power_of_2(rows)),
            OUTS=outs,
            BLOCK=block,
            num_warps=4,
            num_stages=tiles.rows_stages,
            **choices,
        )
        return out
