"""Rows of a matrix that stays on a GPU, for numpy code that wants a few of them at a time.

Knows one tensor; copies what is asked for and nothing else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class DeviceRows:
    """A matrix [rows, columns] of float32, float16 or, for bfloat16, its bits as uint16."""

    ndim = 2

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight.detach()
        self.shape: tuple[int, ...] = tuple(weight.shape)
        kinds = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: np.uint16}
        self.dtype: np.dtype[np.generic] = np.dtype(kinds[weight.dtype])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
        """Rows [n, columns] in RAM; waits for the device."""
        rows = self._weight[torch.from_numpy(ids).to(self._weight.device)].cpu()
        bits: npt.NDArray[np.generic] = (rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows).numpy()
        return bits
