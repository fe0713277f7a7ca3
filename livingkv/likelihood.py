"""The model as its own reranker: how likely a question becomes when one candidate's stored KV is attended.

Knows KV of candidates and the question's tokens; knows no index. Score of a candidate: log p(question | sinks,
candidate), compact positions, one short prefill of the question with the candidates side by side; nothing is
re-read. The gain over no candidate, per question token, is a confidence that needs no
embedder: a stored fact about what is asked makes the question's words likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from livingkv.attention import Partition, attend
from livingkv.codec import KV
from livingkv.model_rope import Rope
from livingkv.positions import Rotation, rotate, rotation, shift
from livingkv.runner import Runner

_SLICE = 64


class Candidate(NamedTuple):
    """Stored KV of a run of tokens, its keys rotated at first_position, first_position + 1, ..."""

    kv: KV
    first_position: int


class CandidateBatch:
    """An AttentionState with one row per candidate: padding, sinks, candidate. New tokens follow at the same positions.

    Row 0 holds the sinks alone. Bounded by the longest candidate times the rows.
    """

    def __init__(self, sinks: Candidate, candidates: Sequence[Candidate], rope: Rope) -> None:
        rows = [[sinks], *([sinks, candidate] for candidate in candidates)]
        lengths = [sum(part.kv.keys.shape[2] for part in row) for row in rows]
        self._length = max(lengths)
        self._rope = rope
        layers, heads, _, dim = sinks.kv.keys.shape
        size = (layers, len(rows), heads, self._length, dim)
        self._keys = sinks.kv.keys.new_zeros(size)
        self._values = sinks.kv.keys.new_zeros(size)
        self._mask = torch.zeros(len(rows), self._length, dtype=torch.bool, device=self._keys.device)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            self._fill(index, row, self._length - length)
        self._read: list[KV] = []
        self._n_read = 0
        self._own: Rotation | None = None

    @property
    def room(self) -> int:
        """See AttentionState: the question is read in one pass."""
        return 1 << 20

    def begin(self, n_tokens: int) -> None:
        """See AttentionState. One pass only."""
        assert self._n_read == 0, "one pass over the question"
        first = self._length
        self._own = rotation(torch.arange(first, first + n_tokens, device=self._keys.device), self._rope)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See AttentionState."""
        assert self._own is not None, "begin comes first"
        query, key = rotate(query, self._own), rotate(key, self._own)
        stored = Partition(query, self._keys[layer], self._values[layer], key_mask=self._mask)
        factor = self._rope.attention_factor
        return attend([stored, Partition(query, key, value, causal=True)], scale * factor * factor)

    def finish(self, n_tokens: int) -> None:
        """See AttentionState."""
        self._n_read = n_tokens

    def _fill(self, index: int, row: Sequence[Candidate], slot: int) -> None:
        for part in row:
            n = part.kv.keys.shape[2]
            self._keys[:, index, :, slot : slot + n] = shift(part.kv.keys, slot - part.first_position, self._rope)
            self._values[:, index, :, slot : slot + n] = part.kv.values
            self._mask[index, slot : slot + n] = True
            slot += n


def question_gains(
    runner: Runner, sinks: Candidate, candidates: Sequence[Candidate], lead: Sequence[int], question: Sequence[int]
) -> Tensor:
    """For each candidate and token of `question` the gain in log-likelihood, in nats, over the sinks alone: fp32
    [candidates, tokens], on the CPU.

    `lead` are tokens read before the question and not scored. Runs one pass of (lead + question) x (candidates +
    1) tokens.
    """
    state = CandidateBatch(sinks, candidates, runner.model.rope)
    ids = torch.tensor([*lead, *question], device=runner.model.device)
    hidden = runner.hidden(ids.expand(len(candidates) + 1, -1), state)[:, len(lead) - 1 : -1]
    target = ids[len(lead) :]
    known = torch.stack([_log_likelihoods(runner, row, target) for row in hidden]).cpu()
    return known[1:] - known[0]


def _log_likelihoods(runner: Runner, hidden: Tensor, target: Tensor) -> Tensor:
    """log p of each target for one row [tokens, hidden], a slice at a time: memory grows with neither rows nor
    tokens."""
    known = []
    for part, words in zip(torch.split(hidden, _SLICE), torch.split(target, _SLICE), strict=True):
        logits = runner.head(part)
        known.append(logits.gather(1, words[:, None])[:, 0] - logits.logsumexp(-1))
    return torch.cat(known)
