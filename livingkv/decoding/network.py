"""One decode step of a network: token ids in, logits out, everything in between on the device.

Two of them: of the parts of a plain network, in few kernels, and of any network that Runner serves, as Hugging Face's
modules compute it. Both ask nothing of the host, so that they can be recorded once and replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from livingkv.decoding.attending import StepAttention
from livingkv.decoding.ops import StepOps
from livingkv.decoding.parts import Parts
from livingkv.decoding.table import Table

Step = Callable[[int], Tensor]
"""From a number of rows, whose table was written, to logits [rows, vocabulary] in the network's dtype or fp32."""


class PlainStep:
    """The step of a plain network's parts."""

    def __init__(self, parts: Parts, table: Table, attention: StepAttention, ops: StepOps) -> None:
        self._parts = parts
        self._table = table
        self._attention = attention
        self._ops = ops

    def __call__(self, n_rows: int) -> Tensor:
        """See Step."""
        attention, ops, parts = self._attention, self._ops, self._parts
        attention.begin(n_rows)
        x = parts.embedding[self._table.tokens(n_rows)]
        for index, layer in enumerate(parts.layers):
            query, key, value = torch.split(
                ops.normed(x, layer.first_norm, layer.query_key_value), list(layer.sizes), -1
            )
            seen = attention.attend(index, query, key, value, layer.scale, layer.head_norms)
            x = ops.added(x, seen, layer.out)
            x = ops.added(x, ops.gated(x, layer.second_norm, layer.gate_up), layer.down)
        logits = ops.normed(x, parts.norm, parts.head)
        return logits if parts.logit_factor == 1.0 else logits.float() * parts.logit_factor


class WholeStep:
    """The step of a network that Runner took over. `head`: from last hidden states to logits in fp32."""

    def __init__(self, base: Any, head: Callable[[Tensor], Tensor], table: Table, attention: StepAttention) -> None:
        self._base = base
        self._head = head
        self._table = table
        self._attention = attention
        self._positions = torch.zeros((1, 1), dtype=torch.int64, device=table.device.device)

    def __call__(self, n_rows: int) -> Tensor:
        """See Step."""
        self._attention.begin(n_rows)
        hidden: Tensor = self._base(
            input_ids=self._table.tokens(n_rows)[:, None],
            position_ids=self._positions,
            use_cache=False,
            livingkv_state=_AsState(self._attention),
        ).last_hidden_state
        return self._head(hidden)[:, 0]


class _AsState:
    """What Runner's attention calls, in place of an AttentionState."""

    def __init__(self, attention: StepAttention) -> None:
        self._attention = attention

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See AttentionState."""
        rows, heads, _, dim = query.shape
        out = self._attention.attend(layer, query.flatten(1), key.flatten(1), value.flatten(1), scale, None)
        return out.view(rows, heads, 1, dim)
