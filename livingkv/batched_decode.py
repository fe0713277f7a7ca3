"""Decode steps of several attention states in one forward pass: row b of a batch of one-token passes goes to state b.

Knows attention states; knows no model, no session and nobody who waits. Weights are read once for all rows, and
attention is each state's own, computed as it is alone: no row sees another. Matrix products over several rows may round
otherwise than over one (docs/decisions/0028).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from livingkv.sampling import Sampler
from livingkv.workspace import AttentionState


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One token to be read into a state that nobody else uses meanwhile.

    sampler: who picks the token after it. Where that is done with the pass, the outcome is that token, and no logits.
    """

    token: int
    state: AttentionState
    sampler: Sampler | None = None


Outcome = Tensor | int | Exception
"""Of a step: the logits in fp32 [1, 1, vocabulary]; the token that its sampler picked; or what its state raised."""


class BatchedDecode:
    """An AttentionState of one token for each of `states`, which are different ones. One pass only.

    `errors`: what each row's state raised, None while all is well. A row that failed takes part no more, its numbers
    are zeros from there on, and its state is left as by a pass of its own that failed.
    """

    def __init__(self, states: Sequence[AttentionState]) -> None:
        assert len({id(state) for state in states}) == len(states), "one token at a time goes into a state"
        self._states = tuple(states)
        self.errors: list[Exception | None] = [None] * len(states)

    @property
    def room(self) -> int:
        """See AttentionState."""
        return 1

    def begin(self, n_tokens: int) -> None:
        """See AttentionState."""
        assert n_tokens == 1, "decode steps are of one token"
        for row, state in self._alive():
            with self._telling(row):
                state.begin(1)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See AttentionState. Raises nothing that a state raises."""
        out = torch.zeros_like(query)
        for row, state in self._alive():
            one = slice(row, row + 1)
            with self._telling(row):
                out[one] = state.attend(layer, query[one], key[one], value[one], scale)
        return out

    def finish(self, n_tokens: int) -> None:
        """See AttentionState."""
        for row, state in self._alive():
            with self._telling(row):
                state.finish(n_tokens)

    def _alive(self) -> Iterator[tuple[int, AttentionState]]:
        return ((row, state) for row, state in enumerate(self._states) if self.errors[row] is None)

    @contextmanager
    def _telling(self, row: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the edge of a row: told to whoever asked for it
            self.errors[row] = error
