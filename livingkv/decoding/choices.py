"""The likeliest token of every row of a decode step, with its log-probability: chosen by the recording itself.

Knows logits; knows no samplers. Rows that take the likeliest token need nothing else of a step, so that one copy of 16
bytes a row is all that comes back from the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Choice(NamedTuple):
    """A token, and the natural log of its probability."""

    token: int
    log_probability: float


class Choices:
    """fp64 [max_rows, 2] on the device, token ids being exact in it, and the pinned twin on the host."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._device = torch.zeros((max_rows, 2), dtype=torch.float64, device=device)
        self._host = torch.zeros((max_rows, 2), dtype=torch.float64, pin_memory=device.type == "cuda")
        self._numbers = self._host.numpy()
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def choose(self, logits: Tensor) -> None:
        """Part of a step: from logits in fp32 [rows, vocabulary]. Queued."""
        rows = logits.shape[0]
        tokens = logits.argmax(-1, keepdim=True)
        self._device[:rows, :1] = tokens
        above = (logits - logits.gather(-1, tokens)).exp_()  # logsumexp would look for the largest once more
        self._device[:rows, 1:] = -above.sum(-1, keepdim=True).log_()

    def fetch(self) -> None:
        """Begin to bring them to the host, after the step that was queued last."""
        self._host.copy_(self._device, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def fetched(self, n_rows: int) -> list[Choice]:
        """Those of the first rows. Waits for the last `fetch`."""
        if self._copied is not None:
            self._copied.synchronize()
        return [Choice(int(token), log_probability) for token, log_probability in self._numbers[:n_rows].tolist()]
