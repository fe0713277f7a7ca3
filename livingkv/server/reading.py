"""A prompt read block by block and a reply generated token by token, each counted as it happens.

Knows the runner and an attention state; knows no session.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import torch
from torch import Tensor

from livingkv.engine import Engine
from livingkv.server.counters import Counters
from livingkv.server.replying import Replying
from livingkv.server.stepwise import in_steps
from livingkv.settings import Settings
from livingkv.store import TokenIds
from livingkv.workspace import AttentionState


class Reading:
    """The forward passes of one request. `n_prefilled`: tokens of the prompt that really went through the model."""

    def __init__(self, engine: Engine, settings: Settings, counters: Counters) -> None:
        self.n_prefilled = 0
        self._engine = engine
        self._block_tokens = engine.pass_tokens(settings, settings.conversation)
        self._counters = counters

    def read(self, token_ids: TokenIds, state: AttentionState) -> Generator[None, None, Tensor]:
        """Read a prompt, pausing after each block; the logits of the reply's first token."""
        assert len(token_ids), "at least one token of a prompt is read"
        runner, step = self._engine.runner, self._block_tokens
        ids = torch.from_numpy(token_ids.astype(np.int64)).to(self._engine.model.device)
        for lo in range(0, len(ids), step):
            part, before = ids[lo : lo + step], runner.n_prefilled
            is_last = lo + step >= len(ids)
            if is_last:
                logits = runner.logits(part, state)
            else:
                runner.read(part, state)
            self.took(runner.n_prefilled - before)
            yield
        return logits

    def took(self, n_tokens: int) -> None:
        """Count tokens that were read."""
        self.n_prefilled += n_tokens
        self._counters.prefilled_tokens.inc(n_tokens)

    def reply(
        self, logits: Tensor, state: AttentionState, replying: Replying, max_tokens: int
    ) -> Generator[None, None, None]:
        """Generate a reply, pausing before each forward pass, which others may share."""
        tokens = self._engine.runner.generate(logits, state, replying.sampler, max_tokens)
        yield from in_steps(lambda: replying.follow(self._counted(tokens)))

    def _counted(self, tokens: Iterator[int]) -> Iterator[int]:
        for token in tokens:
            self._counters.generated_tokens.inc()
            yield token
