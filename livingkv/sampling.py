"""Choosing the next token from logits: greedy, or temperature, top-k, top-p and repetition penalty with a seed.

Knows logits and token ids only. All of it is computed where the logits are, for several rows at once; what was chosen
is read from there once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from livingkv.device_numbers import sent
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

    @property
    def is_greedy(self) -> bool:
        """It takes the likeliest token of the model's own logits, and asks for nothing beside that."""
        return self._sampling.temperature == 0.0 and not self._n_likeliest and not self._penalises

    @property
    def is_common(self) -> bool:
        """`pick` is this class's own, so that `pick_all` and `take` may stand for it."""
        return type(self).pick is Sampler.pick

    def pick(self, logits: Tensor) -> int:
        """The next token for `logits` [vocabulary]. Waits for them."""
        return pick_all([self], logits[None])[0]

    def take(self, token: int, log_probability: float, likeliest: Sequence[tuple[int, float]] = ()) -> int:
        """A token that was picked elsewhere, as `pick` would have; the token."""
        self._seen.add(token)
        self._picked[token] += 1
        self.log_probabilities.append(log_probability)
        self.likeliest.append(list(likeliest))
        return token

    @property
    def _penalises(self) -> bool:
        chosen = self._sampling
        return chosen.repetition_penalty != 1.0 or bool(chosen.presence_penalty or chosen.frequency_penalty)

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

    def _drawing(self) -> tuple[float, float, float, float]:
        """What a draw of the next token goes by, the draw's own point among it."""
        chosen = self._sampling
        drawn = torch.rand((), generator=self._random, dtype=torch.float64).item()
        top_p = chosen.top_p if chosen.top_p < 1.0 else float("inf")
        return chosen.temperature, float(chosen.top_k), top_p, drawn


def pick_all(samplers: Sequence[Sampler], logits: Tensor) -> list[int]:
    """The next token of each sampler for its row of `logits` [rows, vocabulary], as `pick` picks it. Waits once."""
    plain = logits.detach().float()
    tokens = _chosen(samplers, plain)[:, None]
    total = plain.logsumexp(-1, keepdim=True)
    top = plain.topk(min(max(each._n_likeliest for each in samplers), plain.shape[1]))
    n_top = top.indices.shape[1]
    numbers = (tokens.double(), plain.gather(-1, tokens) - total, top.indices.double(), top.values - total)
    rows = torch.cat(numbers, -1).tolist()  # the one wait; token ids are exact in fp64
    picked = []
    for sampler, (token, log_probability, *others) in zip(samplers, rows, strict=True):
        likeliest = [(int(index), value) for index, value in zip(others[:n_top], others[n_top:], strict=True)]
        picked.append(sampler.take(int(token), log_probability, likeliest[: sampler._n_likeliest]))
    return picked


def _chosen(samplers: Sequence[Sampler], plain: Tensor) -> Tensor:
    """Token ids [rows] for logits [rows, vocabulary]."""
    logits = plain
    if any(each._penalises for each in samplers):
        logits = torch.stack([each._penalised(row) for each, row in zip(samplers, plain, strict=True)])
    drawing = [row for row, each in enumerate(samplers) if each._sampling.temperature]
    if len(drawing) == len(samplers):
        return _drawn(samplers, logits)
    tokens = logits.argmax(-1)
    if drawing:
        tokens[drawing] = _drawn([samplers[row] for row in drawing], logits[drawing])
    return tokens


def _drawn(samplers: Sequence[Sampler], logits: Tensor) -> Tensor:
    """Token ids [rows], drawn: the first token up to which the probabilities add up to more than the drawn part."""
    wanted = [each._drawing() for each in samplers]
    columns = sent(torch.tensor(wanted, dtype=torch.float64), logits.device)
    temperature, top_k, top_p, drawn = columns[:, :, None].unbind(1)  # [rows, 1]
    logits = logits / temperature.float()
    most = int(max(k for _, k, _, _ in wanted))
    if most:
        ordered = logits.topk(min(most, logits.shape[1])).values
        floor = ordered.gather(-1, (top_k.long() - 1).clamp(0, ordered.shape[1] - 1))
        logits = logits.masked_fill((logits < floor) & (top_k > 0), float("-inf"))
    probabilities = logits.softmax(-1)
    if any(p < 1.0 for _, _, p, _ in wanted):
        ordered, order = probabilities.sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= top_p
        probabilities = probabilities.scatter(-1, order, ordered.masked_fill(beyond, 0.0))
    below = probabilities.double().cumsum(-1)
    token = torch.searchsorted(below, below[:, -1:] * drawn, right=True)
    return token[:, 0].clamp_max(logits.shape[1] - 1)
