"""A model as plain Hugging Face runs it: a chat prompt, sdpa attention over all of it, the likeliest token each time.

The baseline of comparisons, so it shares nothing with livingkv's attention and goes through the model's own chat
template. The longest beginning that a prompt has in common with the one before is not read again, as servers do it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from livingkv.models import LoadedModel


@dataclass(frozen=True, slots=True)
class Completion:
    """The text of an answer, and the tokens of its prompt: all of them, and those that had to be read."""

    text: str
    n_prompt_tokens: int
    prefilled_tokens: int


@dataclass(slots=True)
class _Kept:
    """Tokens of a prompt; the cache holds their keys and values, and perhaps those of an answer behind them."""

    ids: list[int] = field(default_factory=list)
    cache: DynamicCache = field(default_factory=DynamicCache)


class PlainModel:
    """One network of its own: a network that a livingkv Runner has taken over cannot be used. Not thread-safe."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        model.network.set_attn_implementation("sdpa")
        known = inspect.signature(model.network.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"  # by version of transformers
        self._kept = _Kept()

    @property
    def native_context(self) -> int:
        """Tokens that the model was trained to tell apart."""
        return self.model.shape.native_context

    def count_tokens(self, texts: list[str]) -> list[int]:
        """How many tokens each of the texts has."""
        return [len(ids) for ids in self.model.tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def prompt_ids(self, message: str) -> list[int]:
        """A user's message in the chat template, the assistant's turn opened."""
        turns = [{"role": "user", "content": message}]
        text = self.model.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return list(self.model.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.inference_mode()
    def complete(self, message: str, *, max_tokens: int, reuse: bool = False) -> Completion:
        """The answer to a message, at most `max_tokens` long. Raises ValueError beyond the native context.

        reuse: the beginning that this prompt shares with the last one of this kind is not read again.
        """
        ids = self.prompt_ids(message)
        if len(ids) + max_tokens > self.native_context:
            raise ValueError(
                f"{len(ids)} tokens and an answer do not fit into the native context of {self.native_context}"
            )
        kept = self._common(ids) if reuse else _Kept()
        n_reused = len(kept.ids)
        logits = self._read(ids[n_reused:], kept.cache)
        if reuse:
            kept.ids, self._kept = ids, kept
        answer: list[int] = []
        while len(answer) < max_tokens and (token := int(logits.argmax())) not in self.model.stop_ids:
            answer.append(token)
            if len(answer) < max_tokens:
                logits = self._read([token], kept.cache)
        text = self.model.tokenizer.decode(answer, skip_special_tokens=True).strip()
        return Completion(text, len(ids), len(ids) - n_reused)

    def _common(self, ids: list[int]) -> _Kept:
        """What is kept, cut to the beginning that the ids share with it, at least one token short of them."""
        kept, self._kept = self._kept, _Kept()
        n = min(len(ids) - 1, len(kept.ids))
        common = next((i for i in range(n) if ids[i] != kept.ids[i]), n)
        if common == 0:
            return _Kept()
        if (n_more := int(kept.cache.get_seq_length()) - common) > 0:
            kept.cache.crop(-n_more)
        kept.ids = ids[:common]
        return kept

    def _read(self, ids: list[int], cache: DynamicCache) -> Tensor:
        """Logits [vocabulary] behind the last of the ids; the cache grows by all of them."""
        tokens = torch.tensor([ids], device=self.model.device)
        given = {self._cache_name: cache, "use_cache": True, "logits_to_keep": 1}
        out: Any = self.model.network(tokens, **given)
        logits: Tensor = out.logits[0, -1]
        return logits
