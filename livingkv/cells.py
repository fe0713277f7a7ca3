"""Several cells of a document's grid in one forward pass.

Knows a workspace, a codec and the grid; knows no pages as bytes and no model. A cell is what stands between two lines
of the grid. Its tokens attend the sinks, the span before its line and, causally, themselves: what one pass for each
cell attends, so that keys and values are the same up to rounding wherever passes are cut (docs/decisions/0016). Cells
are a batch: no token of one sees another cell except through its span.

The span is attended as it will be stored: its tokens go through the codec, layer by layer, before they are pages.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from livingkv.attention import Partition, attend, takes_groups
from livingkv.codec import KV
from livingkv.model_rope import DualChunk, Rope
from livingkv.positions import Rotation, rotate, rotation, temperatures
from livingkv.settings import LookBack
from livingkv.workspace import Workspace

AsStored = Callable[[KV, Rotation, int], KV]
"""`PageCodec.stored`."""


def n_padded(first_token: int, n_tokens: int, look: LookBack) -> int:
    """Slots behind the session's end that a pass needs: cells are of one size, so the last one is filled up."""
    return n_tokens + -(first_token + n_tokens) % look.grid_tokens


class Cells:
    """One pass over tokens [first_token, first_token + n_tokens) that crosses a line. Made after `space.begin`.

    first_token: in the second cell or later, so that sinks and a whole span stand before each line. n_sealed: tokens
    that are pages already, whose slots hold what is stored. sinks: KV as stored, rotated to positions 0, 1, ...
    dual_chunk: all that is attended lies in one chunk; what is left of its rules is a factor on each cell's scores.
    Zeroes the slots that fill the last cell up.
    """

    def __init__(
        self,
        space: Workspace,
        stored: AsStored,
        rope: Rope,
        look: LookBack,
        sinks: KV,
        *,
        first_token: int,
        n_tokens: int,
        n_sealed: int,
        dual_chunk: DualChunk | None = None,
    ) -> None:
        self._space, self._stored = space, stored
        self._span, self._grid = look
        self._front = first_token % self._grid
        self._back = n_padded(first_token, n_tokens, look) - n_tokens
        self._n_cells = (self._front + n_tokens + self._back) // self._grid
        line = first_token - self._front
        last_line = line + (self._n_cells - 1) * self._grid
        assert line >= self._grid and n_sealed < last_line, "the pass crosses a line behind the first cell"
        device = space.keys.device
        self._line = space.end - self._front  # slot of the first line
        self._sealed = space.end - (first_token - n_sealed)  # slot of the first token that is in no page
        self._unsealed_by = rotation(torch.arange(n_sealed, last_line, device=device), rope)
        self._sinks = self._placed(sinks, line, rope)
        self._factors = self._temperatures(line, dual_chunk, device)
        space.blank(space.end + n_tokens, space.end + n_tokens + self._back)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See AttentionState."""
        space, grid, n_tokens = self._space, self._grid, query.shape[2]
        own = space.write(layer, query, key, value)[0]
        queries = self._by_cell(pad(own, (0, 0, self._front, self._back)))
        if self._factors is not None:
            queries = (queries.float() * self._factors).to(queries.dtype)
        cells = slice(self._line, self._line + self._n_cells * grid)
        keys, values = self._by_cell(space.keys[layer, :, cells]), self._by_cell(space.values[layer, :, cells])
        before = self._before(layer)
        if takes_groups(queries):  # one kernel for what stands before a cell and for the cell
            parts = [_behind(queries, before, KV(keys, values))]
        else:
            parts = [Partition(queries, keys, values, causal=True), Partition(queries, before.keys, before.values)]
        out = attend(parts, space.scaled(scale))  # [cells, heads, grid, dim]
        return out.transpose(0, 1).flatten(1, 2)[None, :, self._front : self._front + n_tokens]

    def _temperatures(self, line: int, rules: DualChunk | None, device: torch.device) -> Tensor | None:
        """Each cell's factor, fp32 [cells, 1, 1, 1]: that of its end, as in a pass of its own. None where all are 1."""
        if rules is None or line + self._n_cells * self._grid <= rules.original_context:
            return None
        ends = torch.arange(1, self._n_cells + 1, device=device).double() * self._grid + line
        return temperatures(rules, ends).float()[:, None, None, None]

    def _by_cell(self, x: Tensor) -> Tensor:
        """[heads, cells * grid, dim] as [cells, heads, grid, dim]."""
        return x.view(x.shape[0], self._n_cells, self._grid, -1).transpose(0, 1)

    def _before(self, layer: int) -> KV:
        """Sinks and span of every cell as stored: [cells, kv_heads, sinks + span, dim]."""
        space, last = self._space, self._line + (self._n_cells - 1) * self._grid
        new = self._stored(space.layer_view(layer, self._sealed, last), self._unsealed_by, layer)
        old = space.layer_view(layer, self._line - self._span, self._sealed)
        both = []
        for sinks, known, fresh in zip(self._sinks, old, new, strict=True):
            run = torch.cat((known[0], fresh[0]), 1)  # [kv_heads, span + (cells - 1) * grid, dim]
            spans = run.unfold(1, self._span, self._grid).permute(1, 0, 3, 2)
            both.append(torch.cat((sinks[layer], spans), 2))
        return KV(both[0], both[1])

    def _placed(self, sinks: KV, line: int, rope: Rope) -> KV:
        """The sinks just before the span of every cell: [layers, cells, kv_heads, sinks, dim]."""
        first = line - self._span - sinks.keys.shape[2]
        deltas = first + torch.arange(self._n_cells, device=sinks.keys.device) * self._grid
        by = rotation(deltas, rope)
        each = Rotation(by.cos[:, None, None], by.sin[:, None, None])
        keys, values = (part[:, None].expand(-1, self._n_cells, -1, -1, -1) for part in sinks)
        return KV(rotate(keys, each), values)


def _behind(queries: Tensor, before: KV, own: KV) -> Partition:
    """Cells behind what stands before each of them, as one run of keys."""
    keys, values = (torch.cat(both, 2) for both in zip(before, own, strict=True))
    return Partition(queries, keys, values, causal=True)
