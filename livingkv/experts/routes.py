"""Which tokens go to which expert, in the order of transformers' eager code.

Knows the router's choice; refuses to know weights and rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from livingkv.device_numbers import sent


@dataclass(frozen=True, slots=True)
class Route:
    """One expert's work in a pass: token `tokens[i]` chose it as its `ranks[i]`-th. Both on the device, int64."""

    expert: int
    tokens: Tensor  # [n]
    ranks: Tensor  # [n]


@dataclass(frozen=True, slots=True)
class OneTokenRoute:
    """One expert's work in a pass of a single token, which chose it as its `rank`-th and for no other rank."""

    expert: int
    rank: int


AnyRoute = Route | OneTokenRoute


def routes_of(rows: list[list[int]], n_experts: int, device: torch.device) -> list[AnyRoute]:
    """The work of every expert that was chosen, in ascending order; OneTokenRoutes all, or none.

    One transfer to the device, which nobody waits for, unless it is a single token. rows: the router's choice,
    [tokens][top_k]. An expert's tokens are ordered by rank, then by token: eager code asks `torch.where` of a mask
    [rank, token]. The number `n_experts` marks what other devices compute, and is left out.
    """
    work: dict[int, list[tuple[int, int]]] = {}
    for rank in range(len(rows[0]) if rows else 0):
        for token, row in enumerate(rows):
            work.setdefault(row[rank], []).append((rank, token))
    work.pop(n_experts, None)
    experts = sorted(work)
    assert not experts or 0 <= experts[0] <= experts[-1] < n_experts
    if len(rows) == 1 and all(len(pairs) == 1 for pairs in work.values()):
        return [OneTokenRoute(expert, work[expert][0][0]) for expert in experts]
    if not experts:
        return []
    flat = torch.tensor([pair for expert in experts for pair in work[expert]], dtype=torch.int64)
    ranks, tokens = sent(flat.t().contiguous(), device)
    sizes = [len(work[expert]) for expert in experts]
    return [Route(*one) for one in zip(experts, tokens.split(sizes), ranks.split(sizes), strict=True)]
