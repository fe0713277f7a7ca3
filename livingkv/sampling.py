"""Choosing the next token from logits: greedy, or temperature, top-k, top-p and repetition penalty with a seed.

Knows logits and token ids only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from livingkv.errors import InputError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. temperature 0 is greedy. top_k 0 and top_p 1 keep everything.

    repetition_penalty divides positive and multiplies negative logits of tokens seen (CTRL, arXiv 1909.05858); 1
    is off. Raises InputError for a value out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        rules = (
            ("temperature", 0.0 <= self.temperature <= 100.0, "0 to 100 is allowed"),
            ("top_p", 0.0 < self.top_p <= 1.0, "more than 0, at most 1 is allowed"),
            ("top_k", self.top_k >= 0, "0 (off) or more is allowed"),
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 100.0, "more than 0, at most 100 is allowed"),
        )
        for name, fits, allowed in rules:
            if not fits:
                raise InputError(name, getattr(self, name), allowed)


class Sampler:
    """Picks tokens one after the other and remembers them for the repetition penalty. Same seed, same choices.

    `log_probabilities` holds, for each token picked, its natural log-probability under the model's own logits.
    """

    def __init__(self, sampling: Sampling, seen: Iterable[int] = ()) -> None:
        self._sampling = sampling
        self._seen = set(seen)
        self.log_probabilities: list[float] = []
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)

    def pick(self, logits: Tensor) -> int:
        """The next token for `logits` [vocabulary]."""
        plain = logits.detach().float().cpu()
        logits = self._penalised(plain)
        if self._sampling.temperature == 0.0:
            token = int(logits.argmax())
        else:
            token = int(torch.multinomial(self._probabilities(logits), 1, generator=self._random))
        self._seen.add(token)
        self.log_probabilities.append(float(plain[token] - plain.logsumexp(-1)))
        return token

    def _penalised(self, logits: Tensor) -> Tensor:
        penalty = self._sampling.repetition_penalty
        if penalty == 1.0 or not self._seen:
            return logits
        ids = torch.tensor(sorted(self._seen))
        logits = logits.clone()
        logits[ids] = torch.where(logits[ids] > 0, logits[ids] / penalty, logits[ids] * penalty)
        return logits

    def _probabilities(self, logits: Tensor) -> Tensor:
        logits = logits / self._sampling.temperature
        if self._sampling.top_k:
            floor = logits.topk(min(self._sampling.top_k, logits.numel())).values[-1]
            logits = logits.masked_fill(logits < floor, float("-inf"))
        probabilities = logits.softmax(-1)
        if self._sampling.top_p < 1.0:
            ordered, order = probabilities.sort(descending=True)
            beyond = ordered.cumsum(0) - ordered >= self._sampling.top_p
            probabilities = probabilities.index_fill(0, order[beyond], 0.0)
        return probabilities
