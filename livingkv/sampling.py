"""Choosing the next token from logits: greedy, or temperature, top-k, top-p and repetition penalty with a seed.

Knows logits and token ids only. All of it is computed where the logits are; what was chosen is read from there once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from livingkv.errors import InputError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. temperature 0 is greedy. top_k 0 and top_p 1 keep everything.

    repetition_penalty divides positive and multiplies negative logits of tokens seen (CTRL, arXiv 1909.05858); 1
    is off. presence_penalty is taken off the logit of every token that was picked, frequency_penalty as often as it
    was (OpenAI's API); 0 is off. Raises InputError for a value out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        rules = (
            ("temperature", 0.0 <= self.temperature <= 100.0, "0 to 100 is allowed"),
            ("top_p", 0.0 < self.top_p <= 1.0, "more than 0, at most 1 is allowed"),
            ("top_k", self.top_k >= 0, "0 (off) or more is allowed"),
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 100.0, "more than 0, at most 100 is allowed"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "-2 to 2 is allowed"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "-2 to 2 is allowed"),
        )
        for name, fits, allowed in rules:
            if not fits:
                raise InputError(name, getattr(self, name), allowed)


class Sampler:
    """Picks tokens one after the other and remembers them for the repetition penalty. Same seed, same choices.

    `log_probabilities` holds, for each token picked, its natural log-probability under the model's own logits, and
    `likeliest` the `n_likeliest` tokens that were likeliest there, with theirs.
    """

    def __init__(self, sampling: Sampling, seen: Iterable[int] = (), *, n_likeliest: int = 0) -> None:
        self._sampling = sampling
        self._seen = set(seen)
        self._picked: Counter[int] = Counter()
        self._n_likeliest = n_likeliest
        self.log_probabilities: list[float] = []
        self.likeliest: list[list[tuple[int, float]]] = []
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)

    def pick(self, logits: Tensor) -> int:
        """The next token for `logits` [vocabulary]. Waits for them."""
        plain = logits.detach().float()
        token = self._chosen(self._penalised(plain))
        total = plain.logsumexp(-1)
        top = plain.topk(min(self._n_likeliest, plain.numel()))
        numbers = torch.cat([token[None], top.indices]).double(), plain[token][None] - total, top.values - total
        picked, *others = torch.cat(numbers).tolist()  # the one wait; token ids are exact in fp64
        n_top = top.indices.numel()
        self._seen.add(int(picked))
        self._picked[int(picked)] += 1
        self.log_probabilities.append(others[n_top])
        ids = [int(index) for index in others[:n_top]]
        self.likeliest.append(list(zip(ids, others[n_top + 1 :], strict=True)))
        return int(picked)

    def _chosen(self, logits: Tensor) -> Tensor:
        if self._sampling.temperature == 0.0:
            return logits.argmax()
        below = self._probabilities(logits).double().cumsum(0)
        drawn = torch.rand((), generator=self._random, dtype=torch.float64).item()
        return torch.searchsorted(below, below[-1] * drawn, right=True).clamp_max(logits.numel() - 1)

    def _penalised(self, logits: Tensor) -> Tensor:
        chosen = self._sampling
        if chosen.repetition_penalty != 1.0 and self._seen:
            ids = torch.tensor(sorted(self._seen), device=logits.device)
            logits, penalty = logits.clone(), chosen.repetition_penalty
            logits[ids] = torch.where(logits[ids] > 0, logits[ids] / penalty, logits[ids] * penalty)
        if (chosen.presence_penalty or chosen.frequency_penalty) and self._picked:
            ids, counts = (torch.tensor(list(of), device=logits.device) for of in (self._picked, self._picked.values()))
            logits = logits.clone()
            logits[ids] -= chosen.presence_penalty + chosen.frequency_penalty * counts
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
