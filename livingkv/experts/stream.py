"""One layer's experts computed while they arrive: the loop of this package.

A pass: the router's choice is read once; what RAM does not hold is asked for at once, in order; what it holds is
computed meanwhile, then what arrives, as it arrives; outputs are added up in the order of the experts, as eager code
does, so that the order of arrival changes nothing. Each expert is read at most once in a pass, however many tokens
chose it. Used by one thread, that of the model. Knows rows, sources, stages and formats through their protocols.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import ModelError
from livingkv.experts.ahead import ReadAhead
from livingkv.experts.arena import Row, RowArena, RowState
from livingkv.experts.counts import AheadCounts, LayerCounts, StreamCounts
from livingkv.experts.formats import Format
from livingkv.experts.index import ExpertIndex
from livingkv.experts.keys import ExpertKey
from livingkv.experts.one_process import OneProcess
from livingkv.experts.routes import AnyRoute, OneTokenRoute, routes_of
from livingkv.experts.source import Source
from livingkv.experts.stage import Stage


@dataclass(frozen=True, slots=True)
class Asked:
    """A pass of which every read that it needs is on its way.

    chosen: the router's choice, [tokens][top_k]. hidden: what the experts get, [tokens, hidden].
    """

    layer: int
    experts: tuple[int, ...]
    chosen: list[list[int]]
    hidden: Tensor


class ExpertStream:
    """Index, source, arena and stage together. `formats` has one for each layer.

    ahead: reads the next layer's experts early; None: nobody does. on_asked: called in every pass once its reads are on
    their way, for those who record; None for nobody.
    """

    def __init__(
        self, index: ExpertIndex, source: Source, arena: RowArena, stage: Stage, formats: tuple[Format, ...]
    ) -> None:
        self.index, self.source, self.arena, self.stage = index, source, arena, stage
        self.ahead: ReadAhead | None = None
        self.on_asked: Callable[[Asked], None] | None = None
        self._formats = formats
        self._hits = [0] * len(formats)
        self._misses = [0] * len(formats)
        self._n_passes = 0
        self._n_tokens = 0
        self._waited_s = 0.0
        self._closed = False
        self.process = OneProcess()

    def forward(self, layer: int, module: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """What transformers' experts modules compute, bit for bit as its eager code: [tokens, hidden].

        hidden: [tokens, hidden]. chosen, weights: [tokens, top_k]. Raises ExpertReadError when an expert cannot be
        read; then nothing was computed, and the next pass reads again. ModelError when it is closed, and in a process
        that was forked since.
        """
        self.process.require()
        if self._closed:
            raise ModelError("the streamed model is closed: load it again")
        chosen_rows, guessed = self._transferred(layer, hidden, chosen)
        routes = routes_of(chosen_rows, self.index.layers[layer].n_experts, chosen.device)
        self._n_passes += 1
        self._n_tokens += hidden.shape[0]
        work = _Pass(self, layer, routes, _Sum(self._formats[layer], module, hidden, weights, routes))
        try:
            if self.ahead is not None:
                self.ahead.begin(layer, (route.expert for route in routes), hidden.shape[0])
            work.start()
            if self.on_asked is not None:
                self.on_asked(Asked(layer, tuple(route.expert for route in routes), chosen_rows, hidden))
            if self.ahead is not None:
                work.look_ahead(self.ahead, hidden, guessed)
            work.run()
        finally:
            work.let_go()
        if self.ahead is not None:
            self.ahead.end(layer)
        return work.sum.result()

    def _transferred(
        self, layer: int, hidden: Tensor, chosen: Tensor
    ) -> tuple[list[list[int]], list[list[int]] | None]:
        """The router's choice, and on a device that of the next layer as far as foretold, in one transfer."""
        if self.ahead is None or chosen.device.type == "cpu":
            return chosen.tolist(), None
        guess = self.ahead.guess(layer + 1, hidden)
        if guess is None:
            return chosen.tolist(), None
        width = chosen.shape[1]
        rows = torch.cat([chosen, guess.to(chosen.device, chosen.dtype)], dim=1).tolist()
        return [row[:width] for row in rows], [row[width:] for row in rows]

    def ask(self, key: ExpertKey, row: Row, arrivals: queue.SimpleQueue[ExpertKey] | None = None) -> None:
        """Begin to read an expert into a row that was taken; it is put into `arrivals` when it is there or lost."""
        try:
            future = self.source.read(key, row.data)
        except BaseException:
            self.arena.give_back(row)
            raise
        self.arena.begin(row, key, future)
        if arrivals is not None:
            future.add_done_callback(lambda _: arrivals.put(key))

    def close(self) -> None:
        """Wait for reads under way and give everything back; a pass raises ModelError then."""
        if not self._closed:
            self._closed = True
            self.source.close()
            self.arena.close()

    def counted(self, layer: int, *, hit: bool) -> None:
        """One use of an expert of that layer."""
        (self._hits if hit else self._misses)[layer] += 1

    def waited(self, seconds: float) -> None:
        """The model's thread waited."""
        self._waited_s += seconds

    def counts(self) -> StreamCounts:
        """The sums so far."""
        ahead = AheadCounts() if self.ahead is None else self.ahead.counts()
        layers = tuple(LayerCounts(*pair) for pair in zip(self._hits, self._misses, strict=True))
        return StreamCounts(layers, self._n_passes, self._n_tokens, self._waited_s, self.source.counts(), ahead)


@dataclass(slots=True)
class _Pass:
    """One layer, one call. `held` are the rows that are protected for it."""

    stream: ExpertStream
    layer: int
    routes: list[AnyRoute]
    sum: _Sum
    ready: list[ExpertKey] = field(default_factory=list)
    missing: deque[ExpertKey] = field(default_factory=deque)
    arrivals: queue.SimpleQueue[ExpertKey] = field(default_factory=queue.SimpleQueue)
    held: dict[ExpertKey, Row] = field(default_factory=dict)
    n_reading: int = 0
    ahead: ReadAhead | None = None

    def start(self) -> None:
        """Find what is there, and ask for the rest as far as there are rows."""
        for route in self.routes:
            key = ExpertKey(self.layer, route.expert)
            row = self.stream.arena.use(key)
            self.stream.counted(self.layer, hit=row is not None)
            if row is None:
                self.missing.append(key)
                continue
            self.held[key] = row
            if row.state is RowState.READING:
                assert row.future is not None
                self.n_reading += 1
                row.future.add_done_callback(lambda _, key=key: self.arrivals.put(key))  # type: ignore[misc]
            else:
                self.ready.append(key)
        self._ask()

    def look_ahead(self, ahead: ReadAhead, hidden: Tensor, guessed: list[list[int]] | None) -> None:
        """Let the next layer's experts be read in the gaps of this pass. guessed: None where it is to be found out."""
        if guessed is None and hidden.device.type == "cpu":
            guess = ahead.guess(self.layer + 1, hidden)
            guessed = None if guess is None else guess.tolist()
        if guessed is not None:
            ahead.expect(self.layer + 1, guessed, len(self.routes))
            self.ahead = ahead
            if not self.missing:
                ahead.fill()

    def run(self) -> None:
        """Compute everything."""
        for key in self.ready:
            self._compute(key)
            self._ask()
        while self.n_reading:
            key = self._arrived()
            self.n_reading -= 1
            self.stream.arena.finish(self.held[key])
            self._compute(key)
            self._ask()
        assert not self.missing, "there is no row for an expert"

    def let_go(self) -> None:
        """Protect nothing any more. Reads under way go on; the arena looks after their rows."""
        for row in self.held.values():
            self.stream.arena.release(row)
        self.held.clear()

    def _ask(self) -> None:
        while self.missing:
            key = self.missing[0]
            row = self.stream.arena.take(key, len(self.routes), may_wait=not self.held)
            if row is None:
                return
            self.stream.ask(key, row, self.arrivals)
            self.missing.popleft()
            self.held[key] = row
            self.n_reading += 1
        if self.ahead is not None:
            self.ahead.fill()

    def _arrived(self) -> ExpertKey:
        try:
            return self.arrivals.get_nowait()
        except queue.Empty:
            started = perf_counter()
            key = self.arrivals.get()
            self.stream.waited(perf_counter() - started)
            return key

    def _compute(self, key: ExpertKey) -> None:
        tensors = self.stream.stage.tensors(key, self.held[key])
        try:
            self.sum.add(key.expert, tensors)
        finally:
            self.stream.stage.used(key)
        self.stream.arena.release(self.held.pop(key))


class _Sum:
    """Outputs of experts in any order, added up in ascending order as soon as their turn has come."""

    def __init__(self, form: Format, module: Any, hidden: Tensor, weights: Tensor, routes: list[AnyRoute]) -> None:
        self._format, self._module, self._hidden, self._weights = form, module, hidden, weights
        self._routes = {route.expert: route for route in routes}
        self._order = deque(route.expert for route in routes)
        self._outputs: dict[int, Tensor] = {}
        self._total = torch.zeros_like(hidden, dtype=form.sum_dtype(hidden.dtype, weights.dtype))
        # one token: every expert gets the same row, copied once, as indexing copies it
        self._only = hidden.clone() if routes and isinstance(routes[0], OneTokenRoute) else None

    def add(self, expert: int, tensors: dict[str, Tensor]) -> None:
        """Compute one expert's output."""
        route = self._routes[expert]
        if isinstance(route, OneTokenRoute):
            assert self._only is not None
            hidden, weights = self._only, self._weights[:, route.rank : route.rank + 1]
        else:
            hidden, weights = self._hidden[route.tokens], self._weights[route.tokens, route.ranks, None]
        out = self._format.forward(self._module, hidden, tensors)
        self._outputs[expert] = self._format.weigh(out, weights).to(self._total.dtype)
        while self._order and self._order[0] in self._outputs:
            first = self._order.popleft()
            self._add(self._routes[first], self._outputs.pop(first))

    def _add(self, route: AnyRoute, output: Tensor) -> None:
        if isinstance(route, OneTokenRoute):
            self._total.add_(output)
        else:
            self._total.index_add_(0, route.tokens, output)

    def result(self) -> Tensor:
        """The sum. Every expert's output must be in it."""
        assert not self._order
        return self._total.to(self._hidden.dtype)
