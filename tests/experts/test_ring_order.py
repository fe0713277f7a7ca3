"""The ring of device buffers on two simulated queues that run ahead of nobody and behind everybody.

Copies and kernels wait in queues of their own and are run in any order that the fences allow, long after the host went
on: rows are given to other experts and overwritten meanwhile. Every kernel looks whether its buffer holds its expert.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from livingkv.device_queue import Fence
from livingkv.experts.arena import Row, RowArena
from livingkv.experts.eviction import LeastRecent
from livingkv.experts.index import ExpertIndex
from livingkv.experts.keys import ExpertKey
from livingkv.experts.stage import DeviceStage
from tests.experts.conftest import MadeOf, index_of
from tests.experts.tiny_moe import N_EXPERTS

N_LAYERS = 3
KEYS = [ExpertKey(layer, expert) for layer in range(N_LAYERS) for expert in range(N_EXPERTS)]


class Mark:
    """A fence: reached when the queue that it stands in gets to it."""

    def __init__(self, device: TwoQueues) -> None:
        self._device, self.reached = device, False

    def is_done(self) -> bool:
        self._device.run(self._device.random.randrange(3))
        return self.reached

    def wait(self) -> None:
        while not self.reached:
            assert self._device.run(1), "a fence that nothing reaches"


Entry = Mark | tuple[Mark] | Callable[[], object]
"""What a queue holds: a mark to be reached, a mark of the other queue to wait for, or work."""


class TwoQueues:
    """A DeviceQueue that does something only when it is told to. broken: the fence that is forgotten."""

    def __init__(self, random: Random, broken: str | None) -> None:
        self.random, self._broken = random, broken
        self.copies: deque[Entry] = deque()
        self.kernels: deque[Entry] = deque()

    def run(self, n_entries: int) -> int:
        """Run so many entries, of either queue as chance has it; answers how many there were that could run."""
        for number in range(n_entries):
            ready = [queue for queue in (self.copies, self.kernels) if queue and self._may_run(queue[0])]
            if not ready:
                return number
            entry = self.random.choice(ready).popleft()
            if isinstance(entry, Mark):
                entry.reached = True
            elif not isinstance(entry, tuple):
                entry()
        return n_entries

    @staticmethod
    def _may_run(entry: Entry) -> bool:
        return not isinstance(entry, tuple) or entry[0].reached

    def _marked(self, queue: deque[Entry]) -> Mark:
        mark = Mark(self)
        queue.append(mark)
        return mark

    def buffer(self, n_bytes: int) -> Tensor:
        return torch.zeros(n_bytes, dtype=torch.uint8)

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        self.copies.extend(partial(target.copy_, source) for source, target in zip(sources, targets, strict=True))

    def copied(self) -> Fence:
        mark = self._marked(self.copies)
        mark.reached = self._broken == "copied"
        return mark

    def computed(self) -> Fence:
        return self._marked(self.kernels)

    def copy_after(self, fence: Fence) -> None:
        assert isinstance(fence, Mark)
        if self._broken != "copy_after":
            self.copies.append((fence,))

    def compute_after(self, fence: Fence) -> None:
        assert isinstance(fence, Mark)
        if self._broken != "compute_after":
            self.kernels.append((fence,))


def n_wrong_kernels(folder: Path, seed: int, n_buffers: int, broken: str | None = None) -> int:
    """Stage random experts in an arena that holds few; how many of 300 kernels found something else in a buffer."""
    random, index = Random(seed), index_of(folder)
    n_rows = random.choice([2, 5, 9])
    arena = RowArena(n_rows, index.row_bytes, n_needed=len(KEYS), eviction=partial(LeastRecent, N_LAYERS))
    device = TwoQueues(random, broken)
    stage = DeviceStage(index, arena, device, n_buffers)
    wrong: list[ExpertKey] = []

    def kernel(views: dict[str, Tensor], key: ExpertKey) -> None:
        if any((view.view(torch.uint8) != 1 + KEYS.index(key)).any() for view in views.values()):
            wrong.append(key)

    for _ in range(300):
        key = random.choice(KEYS)
        row = arena.use(key) or read(index, arena, key)
        views = stage.tensors(key, row)
        device.kernels.append(partial(kernel, dict(views), key))
        stage.used(key)
        arena.release(row)
        device.run(random.randrange(8))
    assert arena.check() == []
    while device.run(1):
        pass
    assert not device.copies and not device.kernels
    arena.close()
    return len(wrong)


def read(index: ExpertIndex, arena: RowArena, key: ExpertKey) -> Row:
    """A row whose bytes are the number of the expert, as if it had been read."""
    row = arena.take(key, 1)
    assert row is not None
    future: Future[None] = Future()
    future.set_result(None)
    arena.begin(row, key, future)
    row.data[:] = bytes([1 + KEYS.index(key)]) * index.row_bytes
    arena.finish(row)
    return row


@pytest.mark.parametrize("n_buffers", [1, 2, 4])
def test_every_kernel_finds_its_expert(checkpoint_of: MadeOf, n_buffers: int) -> None:
    folder = checkpoint_of("qwen3_moe")
    assert [n_wrong_kernels(folder, seed, n_buffers) for seed in range(3)] == [0] * 3


@pytest.mark.parametrize("broken", ["copied", "copy_after", "compute_after"])
def test_must_break_a_forgotten_fence_is_seen(checkpoint_of: MadeOf, broken: str) -> None:
    folder = checkpoint_of("qwen3_moe")
    assert all(n_wrong_kernels(folder, seed, 2, broken) > 0 for seed in range(3))
