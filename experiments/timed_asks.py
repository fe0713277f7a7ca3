"""How long livingkv takes: from an unopened store to the first token, and for every token of an answer."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from experiments.page_cache import drop_from_cache
from livingkv import Memory, Settings
from livingkv.asking import Asking
from livingkv.home import Home
from livingkv.models import LoadedModel
from livingkv.results import Mode
from livingkv.sampling import Sampler, Sampling


def first_token_seconds(
    store: Path, model: LoadedModel, mode: Mode, question: str, *, session: str = "default", cold: bool = False
) -> float:
    """Open the store, recall or restore, read the question: until the first token. The model is loaded already.

    cold: none of the store's files lies in the system's page cache.
    """
    if cold:
        drop_from_cache(store)
    started = time.perf_counter()
    with Memory.open(store, model=model, read_only=True) as memory:
        opened = time.perf_counter() - started
        answer = memory.ask(question, mode=mode, max_tokens=1, session=session)
    first = answer.timings_ms.first_token or answer.timings_ms.total
    return opened + first / 1000.0


class Endless(Sampler):
    """The likeliest token that does not end the answer."""

    def __init__(self, stop_ids: frozenset[int]) -> None:
        super().__init__(Sampling())
        self._stop_ids = sorted(stop_ids)

    def pick(self, logits: Tensor) -> int:
        """See Sampler."""
        logits = logits.clone()
        logits[self._stop_ids] = float("-inf")
        return super().pick(logits)


class Decoding:
    """One question to one store, up to where the first token was picked; then token after token. A context manager.

    attended: how many tokens the first step sees.
    """

    def __init__(self, store: Path, model: LoadedModel, mode: Mode, question: str, *, n_tokens: int) -> None:
        self._home = Home(store, model, Settings(), read_only=True, create=False)
        asking = Asking(self._home, question)
        probed = asking.probe("default")
        passages = [] if mode == "resume" else asking.passages(asking.chosen(asking.judge(probed)))
        prepared = asking.prepare(mode, probed, passages, n_tokens)
        runner = asking.engine.runner
        ids = torch.tensor(prepared.token_ids, device=model.device)
        logits = runner.logits(ids, prepared.state)
        self._tokens = runner.generate(logits, prepared.state, Endless(model.stop_ids), n_tokens)
        self.attended = prepared.reused_tokens + len(prepared.token_ids)
        next(self._tokens)

    def step_seconds(self) -> float:
        """The time of the next token. At most `n_tokens` less one can be had."""
        started = time.perf_counter()
        next(self._tokens)
        return time.perf_counter() - started

    def __enter__(self) -> Decoding:
        return self

    def __exit__(self, *about: object) -> None:
        self._home.close()
