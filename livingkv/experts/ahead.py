"""Experts of the next layer, read before they are needed, in the gaps that needed reads leave.

What was read ahead and is needed is waited for, never read twice; what was not begun when its layer comes is given up.
Used by one thread, that of the model. Knows rows, sources and guesses; refuses to know how guesses are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from time import perf_counter
from typing import Protocol

from torch import Tensor

from livingkv.experts.alternation import Alternation, Fixed
from livingkv.experts.arena import RowArena, RowState
from livingkv.experts.counts import AheadCounts
from livingkv.experts.index import ExpertIndex
from livingkv.experts.keys import ExpertKey
from livingkv.experts.source import Source

N_AHEAD = 2
"""How many experts of the next layer are read ahead at most."""


class Guesses(Protocol):
    """Foretells what tokens will choose."""

    def chosen(self, layer: int, hidden: Tensor | None) -> Tensor | None:
        """Experts by token for that layer, [tokens, top_k], from what the layer before computes with; None: unknown."""


class ReadAhead:
    """Reads ahead, counts what came of it, and times tokens for `pace`, which says whether to go on."""

    def __init__(
        self,
        index: ExpertIndex,
        source: Source,
        arena: RowArena,
        guesses: Guesses,
        pace: Alternation | Fixed,
        n_at_most: int = N_AHEAD,
    ) -> None:
        self._index, self._source, self._arena = index, source, arena
        self._guesses, self._pace, self._n_at_most = guesses, pace, n_at_most
        self._wanted: list[ExpertKey] = []
        self._n_in_pass = 1
        self._reading: dict[ExpertKey, Future[None]] = {}
        self._late: dict[ExpertKey, Future[None]] = {}
        self._counts: Counter[str] = Counter()
        self._token_began: float | None = None

    def guess(self, layer: int, hidden: Tensor | None) -> Tensor | None:
        """What tokens will choose in a layer, if reading ahead is on. Nothing is read yet."""
        return self._guesses.chosen(layer, hidden) if self._pace.is_on and layer < len(self._index.layers) else None

    def expect(self, layer: int, chosen: list[list[int]], n_in_pass: int) -> None:
        """Experts of that layer, by token, will probably be needed; `fill` reads what most tokens choose first."""
        ranks = zip(*chosen, strict=True)
        votes = Counter(expert for rank in ranks for expert in rank)  # equal votes stay in the order of their ranks
        keys = (ExpertKey(layer, expert) for expert, _ in votes.most_common())
        missing = [key for key in keys if self._arena.state(key) is RowState.EMPTY]
        self._wanted, self._n_in_pass = missing[: self._n_at_most], n_in_pass

    def fill(self) -> None:
        """Ask for what is expected, as far as there are rows. To be called when all that is needed was asked for."""
        while self._wanted:
            key = self._wanted[0]
            row = self._arena.take_ahead(key, self._n_in_pass)
            if row is None:
                return
            self._wanted.pop(0)
            try:
                future = self._source.read(key, row.data, ahead=True)
            except BaseException:
                self._arena.give_back(row)
                raise
            self._arena.begin(row, key, future)
            self._arena.release(row)
            self._reading[key] = future

    def first(self) -> None:
        """Tokens enter the network: if that alone tells what the first layer needs, it is asked for."""
        guess = self.guess(0, None)
        if guess is not None:
            chosen = guess.tolist()
            self.expect(0, chosen, len({expert for row in chosen for expert in row}))
            self.fill()

    def begin(self, layer: int, experts: Iterable[int], n_tokens: int) -> None:
        """A pass begins that needs those experts: what was read ahead for it is needed now, all else is given up.

        Of what is given up, a read that has begun goes on in the gaps; its expert is then held like any other.
        """
        if layer == 0:
            self._token_began = perf_counter() if n_tokens == 1 else None
        elif n_tokens != 1:
            self._token_began = None
        self._wanted = []
        if not self._reading and not self._late:
            return
        needed = {ExpertKey(layer, expert) for expert in experts}
        for key, future in list(self._late.items()):
            if key in needed:
                self._source.need(future)
            elif not self._arena.settle(key):
                continue
            del self._late[key]
        for key, future in self._reading.items():
            self._judge(key, future, is_needed=key in needed)
        self._reading = {}

    def end(self, layer: int) -> None:
        """That pass is over. After the last layer a token of its own was timed, from the first layer on."""
        if layer == len(self._index.layers) - 1 and self._token_began is not None:
            self._pace.took(perf_counter() - self._token_began)
            self._token_began = None

    def counts(self) -> AheadCounts:
        """What was read ahead, and what came of it."""
        found = self._counts
        return AheadCounts(
            n_read=found["used"] + found["wasted"],
            n_used=found["used"],
            n_wasted=found["wasted"],
            n_given_up=found["given up"],
            read_bytes=found["used bytes"] + found["wasted bytes"],
            used_bytes=found["used bytes"],
            wasted_bytes=found["wasted bytes"],
            is_on=self._pace.is_on,
            verdict=self._pace.verdict.value,
            on_s=self._pace.on_s,
            off_s=self._pace.off_s,
        )

    def _judge(self, key: ExpertKey, future: Future[None], *, is_needed: bool) -> None:
        if is_needed:
            self._source.need(future)
            outcome = "used"
        elif self._source.give_up(future):
            self._arena.drop(key)
            outcome = "given up"
        else:
            outcome = "wasted"
            if not self._arena.settle(key):
                self._late[key] = future
        self._counts[outcome] += 1
        runs = self._index.placement(key).runs
        self._counts[f"{outcome} bytes"] += sum(run.block_hi - run.block_lo for run in runs)
