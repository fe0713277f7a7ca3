"""Rows of decode steps for tests: workspaces with random keys and values, runs of any kind, and ways without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from livingkv.codec import PageShape
from livingkv.decoding.attending import HeadNorms, StepAttention, TorchAttention
from livingkv.decoding.decoder import Decoder, Way
from livingkv.decoding.network import PlainStep, WholeStep
from livingkv.decoding.ops import TorchOps
from livingkv.decoding.parts import parts_of
from livingkv.decoding.recording import NoRecorder
from livingkv.decoding.table import Table
from livingkv.model_rope import Rope
from livingkv.runner import Runner
from livingkv.workspace import OneToken, Workspace

N_KV_HEADS, N_LAYERS = 2, 2

ROWS = (
    (7, 50, ((12, 1000), (30, 70_000), (51, 600))),  # several runs, one of them ending within a block
    (0, 0, ((1, 3),)),  # nothing but the token itself
    (9, 16, ((16, 500), (17, 20))),  # its own key alone in its run
)
"""start, end and runs."""


def rope_of(rotary_dim: int) -> Rope:
    """Frequencies as of a small Llama."""
    return Rope(1e4 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim), 1.0)


def filled_table(dtype: torch.dtype, dim: int, rotary_dim: int, device: torch.device) -> Table:
    """A table of 4 rows: ROWS, each in a workspace of its own size, and one that is filled up."""
    shape, rope = PageShape(N_LAYERS, N_KV_HEADS, dim, dtype), rope_of(rotary_dim)
    rows = []
    for index, (start, end, runs) in enumerate(ROWS):
        space = Workspace(shape, rope, end + 1 + 5 * index, device)
        for seed, buffer in enumerate((space.keys, space.values)):
            buffer.copy_(random(*buffer.shape, seed=10 * index + seed))
        rows.append(OneToken(space, start, end, runs, 1.0 + 0.3 * index))
    table = Table(Workspace(shape, rope, 1, device), 4, rope.inverse_frequencies)
    table.write([5, 6, 7], rows, 4)
    return table


def random(*size: int, seed: int) -> Tensor:
    """Normally distributed, fp32 on the CPU."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def attended(
    attention: StepAttention, table: Table, query_key_value: Tensor, n_heads: int, norms: HeadNorms | None = None
) -> tuple[Tensor, list[Tensor]]:
    """The output of layer 1 and, of each row, the keys and values of its own slot."""
    dim = table.rows[0].space.keys.shape[3]
    for row in table.rows:
        row.space.blank(row.end, row.end + 1)
    attention.begin(4)
    query, key, value = torch.split(query_key_value, [n_heads * dim, N_KV_HEADS * dim, N_KV_HEADS * dim], -1)
    out = attention.attend(1, query, key, value, 0.2, norms)
    slots = [part for row in table.rows for part in row.space.layer_view(1, row.end, row.end + 1)]
    return out, [slot.clone() for slot in slots]


def torch_way(runner: Runner, kind: str) -> Way:
    """A step in plain torch: of the network's parts, or of the whole network."""
    network = runner.model.network
    if kind == "whole":
        return kind, lambda table: WholeStep(network.base_model, runner.head, table, TorchAttention(table))
    parts = parts_of(network)
    return kind, lambda table: PlainStep(parts, table, TorchAttention(table), TorchOps())


def torch_decoder(runner: Runner, *ways: Way) -> Decoder:
    """Decode steps in plain torch, run instead of replayed."""
    return Decoder(runner.model, runner._probe, NoRecorder(), [ways])
