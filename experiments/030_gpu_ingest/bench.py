"""What the parts of this experiment share: the model, the texts, the clock. Knows no part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from livingkv import Settings
from livingkv.models import LoadedModel

QUESTION = "Which number does the blue ledger of entry 77 hold?"
WINDOW = 4096
GIB = 1 << 30


@dataclass
class Bench:
    """What the parts share."""

    model: LoadedModel
    device: torch.device
    lengths: list[int]
    plain_tokens: int
    repeats: int
    folder: Path
    result: dict[str, Any]
    model_folder: Path | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.device.type == "cuda"

    def settle(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def peak(self) -> int | None:
        """The most device memory held since `forget_peak`."""
        return torch.cuda.max_memory_allocated(self.device) if self.on_gpu else None

    def forget_peak(self) -> None:
        """Begin to look for a peak anew."""
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Of one piece of work, the device's included."""
        self.settle()
        started = time.perf_counter()
        work()
        self.settle()
        return time.perf_counter() - started

    def settings(self, **changes: Any) -> Settings:
        """Pieces of about a pass each, whatever a token's bytes are."""
        return Settings(commit_tokens=self.commit_tokens, ram_budget_bytes=1 << 28, **changes)

    @cached_property
    def commit_tokens(self) -> int:
        """So many "tokens" of 4 bytes are a full pass of real ones."""
        text = text_of(2000)
        n_tokens = len(self.model.tokenizer(text, add_special_tokens=False)["input_ids"])
        return int(8000 * len(text) / n_tokens / 4) // 64 * 64

    def text(self, n_tokens: int) -> bytes:
        """A text of about so many tokens."""
        sample = text_of(2000)
        per_sentence = len(self.model.tokenizer(sample, add_special_tokens=False)["input_ids"]) / 2000
        return text_of(int(n_tokens / per_sentence)).encode()

    def ids(self, n_tokens: int, seed: int = 0) -> Tensor:
        """Random token ids on the device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 150_000, (n_tokens,), generator=generator).to(self.device)


def text_of(n_sentences: int) -> str:
    """Sentences that are all different."""
    colours, things = ("blue", "red", "green", "white"), ("ledger", "drawer", "letter", "crate", "shelf")
    return "".join(
        f"The {colours[i % 4]} {things[i % 5]} of entry {i} holds the number {i * 7919 % 1_000_003}, as it was noted "
        f"on day {i % 365} by the clerk of room {i * 31 % 977}, who keeps all keys of floor {i % 13} in a tin.\n"
        for i in range(n_sentences)
    )
