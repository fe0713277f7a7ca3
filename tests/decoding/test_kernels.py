"""The kernels of a decode step, run by Triton's interpreter, against plain torch."""

from __future__ import annotations

import os

import pytest
import torch

from livingkv.decoding.attending import HeadNorms, TorchAttention
from livingkv.decoding.ops import FusedOps, StepOps, TorchOps
from livingkv.decoding.parts import Linear
from livingkv.plain_network import Norm
from tests.decoding.rows import N_KV_HEADS, attended, filled_table, random

pytest.importorskip("triton")
if not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("Triton's interpreter is for machines without a GPU", allow_module_level=True)

from livingkv.decoding.on_device import KernelAttention, KernelOps, Tiles, gate, rms

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("dtype", "n_heads", "dim", "rotary_dim", "normed"),
    [
        (torch.float32, 4, 16, 16, False),
        (torch.float32, 6, 24, 8, True),  # a head that is no power of two, of which a part is rotated
        (torch.float16, 2, 32, 32, False),
    ],
)
def test_attention_equals_torch(dtype: torch.dtype, n_heads: int, dim: int, rotary_dim: int, normed: bool) -> None:
    table = filled_table(dtype, dim, rotary_dim, CPU)
    states = random(4, (n_heads + 2 * N_KV_HEADS) * dim, seed=1).to(dtype)
    norms = HeadNorms(random(dim, seed=2).to(dtype), random(dim, seed=3).to(dtype), 1e-6) if normed else None
    want, slots = attended(TorchAttention(table), table, states, n_heads, norms)
    kernels = KernelAttention(table, 4, n_heads, rotary_dim=rotary_dim, n_programs=16)
    got, written = attended(kernels, table, states, n_heads, norms)
    close = 1e-5 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(got, want, atol=close, rtol=close)
    for one, other in zip(written, slots, strict=True):
        torch.testing.assert_close(one, other, atol=close, rtol=close)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("ops", [KernelOps(Tiles(rows_outs=16)), FusedOps(rms, gate)], ids=["kernels", "fused"])
def test_operations_equal_torch(ops: StepOps, rows: int) -> None:
    x, norm = random(rows, 48, seed=0), Norm(random(48, seed=1), 1e-6)
    into = Linear((), random(40, 48, seed=2), random(40, seed=3))
    gates = Linear((), random(68, 48, seed=4), None)
    back, plain = Linear((), random(48, 34, seed=5), None), TorchOps()
    inner = plain.gated(x, norm, gates)
    torch.testing.assert_close(ops.normed(x, norm, into), plain.normed(x, norm, into), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ops.gated(x, norm, gates), inner, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ops.added(x, inner, back), plain.added(x, inner, back), atol=1e-4, rtol=1e-4)
