"""The hot window: the newest tokens of one session in device memory, sealed into pages as they fill.

Knows a workspace, a codec and how far back a session looks; knows no store. It attends what was stored: a page is
sealed as soon as its 64 tokens are there, and its decoded values replace the raw ones, so that a session restored
from pages and tail continues bit for bit like one that never stopped.

Sinks take the slots just before the window, rotated to the positions there (StreamingLLM, arXiv 2309.17453): at a
bounded distance however long the session grows. A document is read on a grid, several cells of it in one pass
(cells.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Collection

import torch
from torch import Tensor

from livingkv.cells import Cells, n_padded
from livingkv.codec import KV, Lossless, PageBytes, PageCodec, PageShape
from livingkv.model_rope import DualChunk, Rope
from livingkv.page_places import GPU_PAGES, Place
from livingkv.positions import period, shift
from livingkv.settings import PAGE_TOKENS, LookBack
from livingkv.spill import HostCopy, Spill, host_copies
from livingkv.workspace import OneToken, Workspace


def window_start(n_tokens: int, look: LookBack) -> int:
    """First token of the hot window of a session of `n_tokens`: a page border, a function of the length alone."""
    line = n_tokens // look.grid_tokens * look.grid_tokens
    return max(0, (line - look.window_tokens) // PAGE_TOKENS * PAGE_TOKENS)


class HotWindow:
    """One session's newest tokens as an AttentionState for appending. Not thread-safe.

    n_sinks: how many first tokens are always attended, 1..64. look: with a grid, what a token attends depends on its
    position alone. It stands as `look`.
    Pages that became full are kept until `take_sealed` or `spill`; until they are durable they are the only copy.
    """

    def __init__(
        self,
        shape: PageShape,
        rope: Rope,
        codec: PageCodec,
        *,
        n_sinks: int,
        look: LookBack,
        block_tokens: int,
        device: torch.device,
        dual_chunk: DualChunk | None = None,
    ) -> None:
        self._lossless = Lossless(shape)
        self._codec = codec
        self._rope = rope
        assert 0 < n_sinks <= PAGE_TOKENS
        self._n_sinks = n_sinks
        self.look = look
        self._block = block_tokens
        self._dual_chunk = dual_chunk
        self._period = None if dual_chunk is None else period(dual_chunk)
        self._pages_at_once = GPU_PAGES if device.type == "cuda" else 1
        self._reserve = PAGE_TOKENS  # slots kept in front of the window for the sinks
        spare = block_tokens if look.grid_tokens == 1 else 2 * look.grid_tokens  # a cell before a pass, one to fill up
        capacity = 2 * PAGE_TOKENS + look.window_tokens + block_tokens + spare
        self.workspace = Workspace(shape, rope, capacity, device, dual_chunk)
        self._lent: weakref.ref[Workspace] | None = None
        self._sinks: KV | None = None
        self._cells: Cells | None = None
        self._window_start = 0
        self.n_tokens = 0
        self.n_sealed = 0
        self._copies = host_copies(device)
        self._sealed: list[HostCopy] = []  # rows of whole pages

    @property
    def room(self) -> int:
        """See AttentionState: at most a block, as many cells of the grid as it reaches the end of."""
        block, grid, n = self._block, self.look.grid_tokens, self.n_tokens
        if grid > 1:
            rest = grid - n % grid
            block = self.workspace.before_border(block)
            many = block > rest and n >= grid and self._looks_into_its_chunk(n - n % grid)
            block = (n + block) // grid * grid - n if many else min(block, rest)
        return self.workspace.before_border(block)

    def _looks_into_its_chunk(self, line: int) -> bool:
        """True where a cell that begins at `line` sees nothing before its chunk of dual-chunk positions: these are
        plain then, there and up to the chunk's end."""
        if self._period is None:
            return True
        return (line - self.look.window_tokens - self._n_sinks) // self._period == line // self._period

    @property
    def n_attended(self) -> int:
        """Stored tokens that the next token sees: all of a short session, else the window and the sinks."""
        start = window_start(self.n_tokens, self.look)
        return self.n_tokens - start + (self._n_sinks if start else 0)

    def restore(
        self, pages: Collection[PageBytes], first_page: int, first_page_bytes: bytes | None, tail: bytes
    ) -> None:
        """Become the state of a stored session: window pages from `first_page` on, page 0 for the sinks, and the tail.
        Of `pages` none is looked at any more when the next one is asked for.

        `first_page_bytes` may be None when `first_page` is 0 or nothing is sealed. Raises RecordDamaged for bytes that
        are not of this model and codec.
        """
        device = self.workspace.keys.device
        self._take_back()
        space = self.workspace
        space.start = space.end = self._reserve
        if 2 * len(pages) * PAGE_TOKENS >= space.capacity:
            space.fill_soon()
        first = first_page * PAGE_TOKENS
        slot = space.claim(len(pages) * PAGE_TOKENS, first)
        places = [Place(first + at, 0, PAGE_TOKENS, slot + at) for at in range(0, space.end - slot, PAGE_TOKENS)]
        self._codec.decode_into(pages, places, KV(space.keys, space.values), self._rope)
        self.n_sealed = first + len(pages) * PAGE_TOKENS
        if tail:
            space.push(self._lossless.decode_run(tail, device), self.n_sealed)
        self.n_tokens = self.n_sealed + space.end - self._reserve - len(pages) * PAGE_TOKENS
        space.next_position = self.n_tokens
        self._window_start = first
        if self.n_sealed:
            if first_page:
                assert first_page_bytes is not None, "sinks need page 0"
                self._keep_sinks(self._codec.decode([first_page_bytes], [0], device))
            else:
                self._keep_sinks(space.view(self._reserve, self._reserve + PAGE_TOKENS))
        self._place(first)

    def begin(self, n_tokens: int) -> None:
        """See AttentionState."""
        self._take_back()
        start = window_start(self.n_tokens, self.look)
        if start != self._window_start:
            self._place(start)
        crosses = self.look.grid_tokens > 1 and self.n_tokens % self.look.grid_tokens + n_tokens > self.look.grid_tokens
        needed = n_padded(self.n_tokens, n_tokens, self.look) if crosses else n_tokens
        if self.workspace.capacity - self.workspace.end < needed:
            self._slide()
        self.workspace.begin(n_tokens, length=self._length(n_tokens))
        self._cells = self._cells_of(n_tokens) if crosses else None

    def _length(self, n_tokens: int) -> int | None:
        """How long the text is, as far as scores depend on it: with a grid to the end of the cell, wherever passes are
        cut. Several cells look after that themselves."""
        grid = self.look.grid_tokens
        if grid == 1:
            return None
        n_cells = -(-(self.n_tokens + n_tokens) // grid) - self.n_tokens // grid
        return 0 if n_cells > 1 else (self.n_tokens // grid + 1) * grid

    def one_token(self) -> OneToken:
        """See Workspace: what `begin(1)` prepares, in numbers; sinks and slots are moved where need be."""
        self._take_back()
        start = window_start(self.n_tokens, self.look)
        if start != self._window_start:
            self._place(start)
        if self.workspace.capacity == self.workspace.end:
            self._slide()
        return self.workspace.one_token()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See AttentionState."""
        state = self.workspace if self._cells is None else self._cells
        return state.attend(layer, query, key, value, scale)

    def finish(self, n_tokens: int) -> None:
        """See AttentionState. Seals the pages that are full now."""
        self.workspace.finish(n_tokens)
        self._cells = None
        self.n_tokens += n_tokens
        full = (self.n_tokens - self.n_sealed) // PAGE_TOKENS * PAGE_TOKENS
        if full:
            self._seal(full)

    def take_sealed(self) -> tuple[bytes, ...]:
        """The pages sealed since the last call, in order. They are the caller's from now on."""
        pages, self._sealed = tuple(self.sealed), []
        return pages

    @property
    def sealed(self) -> list[bytes]:
        """The pages sealed since they were last taken. Waits for the device."""
        return [row.tobytes() for rows in self._sealed for row in rows.wait().numpy()]

    def spill(self) -> Spill:
        """The pages sealed since they were last taken, the caller's from now on, and the tail: on their way from the
        device, which is not waited for. What is read from now on does not change them."""
        sealed, self._sealed = tuple(self._sealed), []
        space, n_tail = self.workspace, self.n_tokens - self.n_sealed
        if n_tail == 0:
            return Spill(sealed)
        tail = space.view(space.end - n_tail, space.end)
        body = torch.cat([part.flatten().view(torch.uint8) for part in tail])
        return Spill(sealed, self._lossless.run_header(n_tail), self._copies.start(body))

    def rewind(self, n_tokens: int) -> None:
        """Forget the newest tokens, back to `n_tokens`; they lie in the unsealed tail."""
        assert self.n_sealed <= n_tokens <= self.n_tokens, "what is sealed stays"
        self.workspace.end -= self.n_tokens - n_tokens
        self.workspace.next_position = self.n_tokens = n_tokens

    def tail(self) -> bytes:
        """The unsealed tail, losslessly: tokens from `n_sealed` on; empty where there are none."""
        space = self.workspace
        if self.n_tokens == self.n_sealed:
            return b""
        return self._lossless.encode_run(space.view(space.end - (self.n_tokens - self.n_sealed), space.end))

    def branch(self, extra_tokens: int) -> Workspace:
        """A workspace of its own with the attended slots and room for `extra_tokens`: what is read there does not enter
        the session. On a CPU, where copies are dear, slots are shared until the session goes on."""
        self._take_back()
        start = window_start(self.n_tokens, self.look)
        if start != self._window_start:
            self._place(start)
        space = self.workspace
        if space.keys.device.type == "cpu" and space.end + extra_tokens <= space.capacity:
            lent = space.lent(extra_tokens)
            self._lent = weakref.ref(lent)
            return lent
        copy = space.sibling(space.n_attended + extra_tokens)
        copy.push(space.view(space.start, space.end), 0)
        copy.positions[: copy.end] = space.positions[space.start : space.end]
        copy.next_position = space.next_position
        return copy

    def _take_back(self) -> None:
        """A branch that is still in use gets memory of its own: slots are about to change."""
        lent = None if self._lent is None else self._lent()
        self._lent = None
        if lent is not None:
            lent.stand_alone()

    def _cells_of(self, n_tokens: int) -> Cells:
        assert self._sinks is not None, "the first cell is a pass of its own"
        return Cells(
            self.workspace,
            self._codec.stored,
            self._rope,
            self.look,
            self._sinks,
            first_token=self.n_tokens,
            n_tokens=n_tokens,
            n_sealed=self.n_sealed,
            dual_chunk=self._dual_chunk,
        )

    def _seal(self, n_tokens: int) -> None:
        space, first = self.workspace, self.n_sealed
        slot = space.end - (self.n_tokens - first)
        step = self._pages_at_once * PAGE_TOKENS
        for lo in range(0, n_tokens, step):
            hi = min(lo + step, n_tokens)
            rows = self._codec.seal(space.view(slot + lo, slot + hi), first + lo)
            self._sealed.append(self._copies.start(rows))
        if first == 0:
            self._keep_sinks(space.view(slot, slot + PAGE_TOKENS))
        self.n_sealed += n_tokens

    def _keep_sinks(self, page: KV) -> None:
        self._sinks = KV(page.keys[:, :, : self._n_sinks].clone(), page.values[:, :, : self._n_sinks].clone())

    def _place(self, start: int) -> None:
        """Attend from token `start` on, with the sinks in the slots before it."""
        space = self.workspace
        slot = space.end - (self.n_tokens - start)
        self._window_start = start
        if start == 0:
            space.start = slot
            return
        assert self._sinks is not None and slot >= self._n_sinks, "no slots for the sinks"
        delta = start - self._n_sinks
        space.put(slot - self._n_sinks, KV(shift(self._sinks.keys, delta, self._rope), self._sinks.values), delta)
        space.start = slot - self._n_sinks

    def _slide(self) -> None:
        """Make room at the end: the attended slots move to the front of the buffers."""
        space = self.workspace
        space.move_down(max(space.start - (self._reserve - self._n_sinks), 0))
