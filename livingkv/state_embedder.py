"""Sentences as vectors of the model's own states: the state from which it would say a sentence in one word.

Knows a runner and token ids; knows no index and no store. A text is read alone, with `PROMPT` behind it, and the last
hidden state of the last token is its vector (PromptEOL: Jiang et al., Scaling Sentence Embeddings with Large Language
Models, arXiv 2307.16645). What all such states have in common is measured once for each model on
`calibration_text`, never on what is stored, so that a vector stays the same whatever was embedded before.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from livingkv.attention import Partition, attend
from livingkv.calibration_text import CALIBRATION_VERSION, calibration_sentences
from livingkv.index.common_part import CommonPart, unit
from livingkv.index.embedders import MAX_DIMENSION
from livingkv.index.mixing import Floats, shortened
from livingkv.model_rope import Rope
from livingkv.positions import Rotation, rotate, rotation
from livingkv.regular_files import read_regular
from livingkv.runner import Runner

PROMPT = '\nThis sentence means in one word: "'
MAX_TOKENS = 256
"""Of a longer text the beginning is embedded."""

_BATCH_TOKENS = 4096
_CALIBRATION_SENTENCES = 640


class SideBySide:
    """An AttentionState for one pass over texts that begin at position 0 and see nothing but themselves.

    Rows are padded behind their end: no token sees a later one, so padding changes nothing before it.
    """

    def __init__(self, rope: Rope, device: torch.device) -> None:
        self._rope = rope
        self._device = device
        self._own: Rotation | None = None

    @property
    def room(self) -> int:
        """See AttentionState: all in one pass."""
        return 1 << 20

    def begin(self, n_tokens: int) -> None:
        """See AttentionState."""
        self._own = rotation(torch.arange(n_tokens, device=self._device), self._rope)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See AttentionState."""
        assert self._own is not None, "begin comes first"
        factor = self._rope.attention_factor
        part = Partition(rotate(query, self._own), rotate(key, self._own), value, causal=True)
        return attend([part], scale * factor * factor)

    def finish(self, n_tokens: int) -> None:
        """See AttentionState."""


class StateEmbedder:
    """An Embedder that runs every text through the model once. Not thread-safe: it uses the runner.

    encode: token ids of a text, without special tokens. name: names model and tokenizer (their digests). cache: a
    folder where what is measured once for each model is kept; a file there that cannot be read is made anew.
    """

    def __init__(self, runner: Runner, encode: Callable[[str], Sequence[int]], *, name: str, cache: Path) -> None:
        self._runner = runner
        self._encode = encode
        self._prompt = list(encode(PROMPT))
        width = int(runner.model.network.get_input_embeddings().weight.shape[1])
        self.dimension = min(width, MAX_DIMENSION)
        self.id = f"model-states-1.{CALIBRATION_VERSION}:{name}"
        self._kept = cache / "embedders" / f"{hashlib.sha256(self.id.encode()).hexdigest()[:16]}.safetensors"
        self._common: CommonPart | None = None

    def embed(self, texts: Sequence[str]) -> Floats:
        """See Embedder. Costs a forward pass over the texts' tokens and the prompt behind each; the first call for a
        model measures the common part, some thousand tokens."""
        if self._common is None:
            self._common = self._read_kept() or self._measured()
        return unit(shortened(self._common.removed(self._states(texts)), self.dimension)) * _said(texts)

    def _measured(self) -> CommonPart:
        common = CommonPart.half_whitening(self._states(calibration_sentences(_CALIBRATION_SENTENCES)))
        self._keep(common)
        return common

    def _states(self, texts: Sequence[str]) -> Floats:
        """The states [n, hidden], long texts with long ones, so that little is padding."""
        rows = [[*self._encode(text.strip())[:MAX_TOKENS], *self._prompt] for text in texts]
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        width = self._runner.model.network.get_input_embeddings().weight.shape[1]
        states = np.zeros((len(rows), width), np.float32)
        while order:
            longest = len(rows[order[-1]])
            n = max(1, _BATCH_TOKENS // longest)
            states[order[-n:]] = self._batch([rows[index] for index in order[-n:]])
            del order[-n:]
        return states

    def _batch(self, rows: Sequence[Sequence[int]]) -> Floats:
        device = self._runner.model.device
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
        hidden = self._runner.hidden(ids.to(device), SideBySide(self._runner.model.rope, device))
        last = torch.tensor([len(row) - 1 for row in rows], device=device)
        states: Floats = hidden[torch.arange(len(rows), device=device), last].float().cpu().numpy()
        return states

    def _read_kept(self) -> CommonPart | None:
        with contextlib.suppress(OSError, SafetensorError, TypeError):
            return CommonPart(**load(read_regular(self._kept)))
        return None

    def _keep(self, common: CommonPart) -> None:
        """Another process may do the same at the same time: whole files only. Without a writable cache it is measured
        again next time."""
        draft = self._kept.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(save(common._asdict()))
            draft.replace(self._kept)


def _said(texts: Sequence[str]) -> Floats:
    """1 for a text, 0 for one of white space alone [n, 1]: it says nothing and must match nothing."""
    return np.array([[1.0 if text.strip() else 0.0] for text in texts], np.float32).reshape(-1, 1)
