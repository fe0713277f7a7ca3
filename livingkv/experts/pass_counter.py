"""How many forward passes a network made, and how long they took.

Knows torch's hooks; knows no experts.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any


class PassCounter:
    """Counts the passes of `network`'s base model from now on. Read by any thread, written by the model's own.

    seconds: from the call of a pass to its return; on a device the last layer may still be at work then.
    """

    def __init__(self, network: Any) -> None:
        self.seconds = 0.0
        self.n_passes = 0
        self.n_tokens = 0
        self._began = 0.0
        network.base_model.register_forward_pre_hook(self._begin)
        network.base_model.register_forward_hook(self._end)

    def _begin(self, module: Any, given: tuple[Any, ...]) -> None:
        self._began = perf_counter()

    def _end(self, module: Any, given: tuple[Any, ...], output: Any) -> None:
        self.seconds += perf_counter() - self._began
        self.n_passes += 1
        self.n_tokens += output.last_hidden_state.shape[:2].numel()
