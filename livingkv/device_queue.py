"""A device's two queues and what marks a place in them, behind protocols, so that order can be tested without a device.

Knows copies and fences; knows neither experts nor pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Fence(Protocol):
    """Something under way on a device."""

    def is_done(self) -> bool:
        """Whether it is over. Does not wait."""

    def wait(self) -> None:
        """Return when it is over."""


class DeviceQueue(Protocol):
    """A device's two queues: one copies, the other computes. Nothing here waits, except for Fence.wait."""

    def buffer(self, n_bytes: int) -> Tensor:
        """Memory of the device, uint8."""

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Queue copies from RAM to the device among the copies, one of each source, all uint8."""

    def copied(self) -> Fence:
        """Done when every copy queued so far is."""

    def computed(self) -> Fence:
        """Done when everything computed so far is."""

    def copy_after(self, fence: Fence) -> None:
        """Copies queued from now on begin when the fence is done."""

    def compute_after(self, fence: Fence) -> None:
        """What is computed from now on begins when the fence is done."""
