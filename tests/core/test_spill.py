"""KV leaves the device in the order that its queues promise, and what was read stays what it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from livingkv.device_queue import Fence
from livingkv.engine import Engine
from livingkv.hot_window import HotWindow
from livingkv.settings import CodecName, LookBack, Settings
from livingkv.spill import HereAlready, QueuedCopies
from tests.core.test_exactness import tokens
from tests.tiny import tiny_model


class LateQueue:
    """A DeviceQueue whose copies run when somebody waits for them. `said`: what was asked of it, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._waiting: list[Callable[[], object]] = []
        self.n_run = 0

    def buffer(self, n_bytes: int) -> Tensor:
        """See DeviceQueue."""
        return torch.empty(n_bytes, dtype=torch.uint8)

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """See DeviceQueue."""
        for source, target in zip(sources, targets, strict=True):
            self.said.append("copy")
            self._waiting.append(partial(target.copy_, source))

    def copied(self) -> Fence:
        """See DeviceQueue."""
        return LateFence(self, self.n_run + len(self._waiting))

    def computed(self) -> Fence:
        """See DeviceQueue."""
        return LateFence(self, 0)

    def copy_after(self, fence: Fence) -> None:
        """See DeviceQueue."""
        self.said.append("copy after compute")

    def compute_after(self, fence: Fence) -> None:
        """See DeviceQueue."""
        self.said.append("compute after copy")
        fence.wait()

    def run(self, n: int) -> None:
        """Run copies up to the nth ever asked for."""
        with torch.inference_mode():
            while self.n_run < n:
                self._waiting.pop(0)()
                self.n_run += 1


class LateFence:
    """Done when so many copies were run."""

    def __init__(self, queue: LateQueue, n: int) -> None:
        self._queue, self._n = queue, n

    def is_done(self) -> bool:
        """See Fence."""
        return self._queue.n_run >= self._n

    def wait(self) -> None:
        """See Fence."""
        self._queue.run(self._n)


def window(engine: Engine, queue: LateQueue | None, look: LookBack) -> HotWindow:
    """An empty hot window whose pages leave by `queue`."""
    hot = engine.hot_window(Settings(window_tokens=128, block_tokens=256), 8, look)
    hot._copies = HereAlready() if queue is None else QueuedCopies(queue, pinned=False)
    return hot


@pytest.mark.parametrize("codec", ["int8", "lossless"])
@pytest.mark.parametrize("look", [LookBack(128), LookBack(64, 128)])
def test_what_is_spilled_is_what_was_read_however_late_it_arrives(codec: CodecName, look: LookBack) -> None:
    engine, queue = Engine.of(tiny_model("qwen2", dtype=torch.bfloat16), codec), LateQueue()
    hot, plain = window(engine, queue, look), window(engine, None, look)
    spills, want = [], []
    for seed, n in enumerate((70, 300, 1, 200)):
        for each in (hot, plain):
            engine.runner.read(tokens(n, seed=seed), each)
        want.append(([bytes(page) for page in plain.take_sealed()], plain.tail()))
        spills.append(hot.spill())
    assert queue.n_run == 0 and queue.said.count("copy") > 4, "nothing waited for a copy"
    assert queue.said == ["copy after compute", "copy"] * queue.said.count("copy")
    got = [([bytes(page) for page in spill.pages()], spill.tail()) for spill in spills]
    assert got == want
    assert [bytes(page) for page in spills[1].pages()] == want[1][0], "it may be asked for again"


def test_pages_are_taken_once() -> None:
    engine = Engine.of(tiny_model("qwen2"), "int8")
    hot = window(engine, LateQueue(), LookBack(128))
    engine.runner.read(tokens(200), hot)
    assert len(hot.spill().pages()) == 3 and hot.spill().pages() == () and hot.take_sealed() == ()
