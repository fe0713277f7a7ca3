"""Exact search over 8-bit codes in a device's memory: a matrix product a part, no library.

Knows codes, rows and a torch device; imports torch when it is made. On a CPU `flat_parts` is quicker: it multiplies the
codes as they are, where this makes them floats first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from livingkv.index.flat_parts import Codes, Ints, best_rows
from livingkv.index.mixing import Floats

_PART_ROWS = 1 << 14
_FREE_SHARE = 0.25


def fits(device: str, size_bytes: int) -> bool:
    """Whether codes of this size take no more than a quarter of what is free on a CUDA device now."""
    import torch

    return size_bytes <= _FREE_SHARE * torch.cuda.mem_get_info(device)[0]


class DeviceParts:
    """Rows of codes [dimension] on a device, numbered in the order in which they came. Not thread-safe.

    The products are whole numbers below 2**24, so that fp32 has them exactly.
    """

    def __init__(self, dimension: int, device: str, part_rows: int = _PART_ROWS) -> None:
        import torch

        self._torch = torch
        self._device = device
        self._dimension = dimension
        self._part_rows = part_rows
        self._parts: list[Any] = []

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def add(self, codes: Codes) -> None:
        """See FlatParts."""
        done = 0
        while done < len(codes):
            if not self._parts or len(self._parts[-1]) == self._part_rows:
                self._parts.append(
                    self._torch.zeros((0, self._dimension), dtype=self._torch.uint8, device=self._device)
                )
            room = self._part_rows - len(self._parts[-1])
            rows = self._torch.tensor(codes[done : done + room], device=self._device)
            self._parts[-1] = self._torch.cat((self._parts[-1], rows))
            done += room

    def codes(self) -> Codes:
        """See FlatParts."""
        parts = [part.cpu().numpy() for part in self._parts]
        return np.concatenate([np.zeros((0, self._dimension), np.uint8), *parts])

    def search(self, query: Floats, limit: int, allowed: npt.NDArray[np.bool_] | None) -> tuple[Floats, Ints]:
        """See FlatParts."""
        torch = self._torch
        found: list[tuple[Floats, Ints]] = []
        with torch.inference_mode():
            wanted = torch.tensor(query, device=self._device)
            offset, lo = 128 * float(query.sum()), 0
            for part in self._parts:
                scores = torch.mv(part.float(), wanted) - offset
                if allowed is not None:
                    marks = torch.tensor(allowed[lo : lo + len(part)], device=self._device)
                    scores = scores.masked_fill(~marks, float("-inf"))
                values, rows = scores.topk(min(limit, len(part)))
                there = values > float("-inf")
                found.append((values[there].cpu().numpy(), rows[there].cpu().numpy() + lo))
                lo += len(part)
        return best_rows(found, limit)
