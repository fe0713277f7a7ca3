"""The seed's KV memory, re-implemented as a baseline: its own settings, on any model that livingkv runs.

Knows token ids and the spans of sentences; knows no store, no index and no page. As the seed has it: the text is read
in blocks of 512 that attend the 4,096 tokens before them and no sinks; keys and values of all tokens are kept, keys
rotated at their absolute positions; the catalog holds the mean hidden state of a layer at 0.64 of the depth for every
sentence, centred, its two strongest directions removed; a question's last token is the probe; the question stands at
the end of the text, and attends the last 32 tokens and those 224 that the best sentences begin with, all where they
were read. The seed scored the first token of an answer; here the whole answer is generated. Kept in the model's dtype,
which is kinder than its 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from livingkv.codec import KV
from livingkv.engine import Engine
from livingkv.generation import collect
from livingkv.modes import question_ids
from livingkv.sampling import Sampler, Sampling
from livingkv.workspace import Workspace

WINDOW, BLOCK = 4096, 512
LAYER_SHARE = 18 / 28
"""The seed took layer 18 of the 28 of Qwen2.5-7B."""

BUDGET, RECENT = 256, 32
COMMON_DIRECTIONS = 2
Probe = Literal["last", "mean"]


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, and the rank of a given sentence in the catalog, from 1."""

    text: str
    rank: int
    attended: int


class SeedMemory:
    """One text, read. Keys and values [layers, heads, tokens, dim] on the model's device."""

    def __init__(self, engine: Engine, token_ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> None:
        """Reads the text; spans are the tokens of its sentences, empty ones left out."""
        self._engine = engine
        self._ids = torch.tensor(token_ids, device=engine.model.device)
        self._spans = list(spans)
        shape = engine.shape
        size = (shape.n_layers, shape.n_kv_heads, len(token_ids), shape.head_dim)
        self._keys = torch.empty(size, dtype=shape.dtype, device=engine.model.device)
        self._values = torch.empty_like(self._keys)
        states = self._read()
        catalog = torch.stack([states[lo:hi].float().mean(0) for lo, hi in self._spans])
        self._mean = catalog.mean(0)
        centred = catalog - self._mean
        self._common = torch.linalg.svd(centred, full_matrices=False).Vh[:COMMON_DIRECTIONS]
        self._catalog = self._clean(catalog)

    def ask(
        self,
        question: str,
        *,
        gold: int,
        max_tokens: int,
        probe: Probe = "last",
        budget: int = BUDGET,
        n_sinks: int = 0,
        told: bool = False,
    ) -> Said:
        """A greedy answer. gold: the sentence whose rank is told. probe: the last token, as the seed, or the mean of
        the question. n_sinks: so many first tokens are attended as well; the seed attends none. told: the gold sentence
        is attended first of all, so that only reading is measured."""
        scores = self._catalog @ self._clean(self._probe(question, probe)[None])[0]
        order = scores.argsort(descending=True).tolist()
        rank = order.index(gold) + 1
        chosen = self._chosen([gold, *order] if told else order, budget, n_sinks)
        ids = torch.tensor(question_ids(self._engine, question), device=self._engine.model.device)
        space = self._engine.workspace(len(chosen) + len(ids) + max_tokens)
        self._attend(space, chosen)
        runner = self._engine.runner
        tokens = runner.generate(runner.logits(ids, space), space, Sampler(Sampling()), max_tokens)
        text = collect(tokens, self._engine.words.stream(), max_tokens).text
        return Said(text, rank, len(chosen))

    def _read(self) -> Tensor:
        """Reads the text; hidden states [tokens, hidden] of the catalog's layer, on the CPU."""
        n = len(self._ids)
        space = self._engine.workspace(WINDOW + 2 * BLOCK)
        states = []
        for lo in range(0, n, BLOCK):
            hi = min(lo + BLOCK, n)
            if space.n_attended > WINDOW:
                space.start = space.end - WINDOW
                space.move_down(space.start)
            with states_of(self._engine) as seen:
                self._engine.runner.read(self._ids[lo:hi], space)
            states += [part[0].cpu() for part in seen]
            kv = space.view(space.end - (hi - lo), space.end)
            self._keys[:, :, lo:hi], self._values[:, :, lo:hi] = kv.keys, kv.values
        return torch.cat(states)

    def _probe(self, question: str, probe: Probe) -> Tensor:
        """The question's state behind the newest tokens."""
        n = len(self._ids)
        ids = torch.tensor(self._engine.words.encode(f"\n\n{question}"), device=self._engine.model.device)
        space = self._engine.workspace(RECENT + len(ids))
        self._attend(space, list(range(max(0, n - RECENT), n)))
        with states_of(self._engine) as seen:
            self._engine.runner.read(ids, space)
        states = torch.cat([part[0] for part in seen]).float().cpu()
        return states[-1] if probe == "last" else states.mean(0)

    def _chosen(self, order: Sequence[int], budget: int, n_sinks: int) -> list[int]:
        """Tokens to attend, in order: the sinks, those of the best sentences, and the newest."""
        n = len(self._ids)
        chosen = {*range(n_sinks), *range(max(0, n - RECENT), n)}
        for index in order:
            for token in range(*self._spans[index]):
                if len(chosen) < budget:
                    chosen.add(token)
        return sorted(chosen)

    def _attend(self, space: Workspace, tokens: Sequence[int]) -> None:
        """Put tokens where they were read; the next one comes behind the text."""
        at = torch.tensor(tokens, device=self._keys.device)
        space.push(KV(self._keys[:, :, at], self._values[:, :, at]), 0)
        space.positions[: len(tokens)] = torch.tensor(tokens)
        space.next_position = len(self._ids)

    def _clean(self, rows: Tensor) -> Tensor:
        centred = rows - self._mean
        return torch.nn.functional.normalize(centred - centred @ self._common.T @ self._common, dim=-1)


@contextmanager
def states_of(engine: Engine) -> Iterator[list[Tensor]]:
    """Within it: hidden states [1, tokens, hidden] of the catalog's layer, pass by pass."""
    seen: list[Tensor] = []
    layer = engine.model.network.base_model.layers[round(LAYER_SHARE * engine.shape.n_layers) - 1]
    handle = layer.register_forward_hook(
        lambda module, given, out: seen.append(out[0] if isinstance(out, tuple) else out)
    )
    try:
        yield seen
    finally:
        handle.remove()
