"""The ring of device buffers, on a device made of lists: what is queued happens only when a fence demands it.

So a missing fence shows as stale or overwritten numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from livingkv.device_queue import Fence
from livingkv.experts.arena import RowState
from livingkv.experts.formats import PlainFormat
from livingkv.experts.index import ExpertIndex
from livingkv.experts.keys import ExpertKey
from livingkv.experts.loading import load_streamed
from livingkv.experts.stage import DeviceStage
from livingkv.experts.stream import ExpertStream
from tests.experts.coded_moe import write_coded
from tests.experts.conftest import MadeOf
from tests.experts.tiny_moe import N_EXPERTS, plain_network

IDS = torch.tensor([[5, 17, 80, 3, 44, 9]])


class ListFence:
    """Done when so many entries of a list were run."""

    def __init__(self, device: ListDevice, queue: list[Callable[[], object]], n_before: int) -> None:
        self.device, self.queue, self.n_before = device, queue, n_before

    def is_done(self) -> bool:
        return self.device.n_run[id(self.queue)] >= self.n_before

    def wait(self) -> None:
        self.device.run(self.queue, self.n_before)


class ListDevice:
    """A DeviceQueue whose copies wait in a list until something demands them. The CPU computes at once.

    forget_copied: leave out what makes kernels wait for copies, as a bug would.
    """

    def __init__(self, *, forget_copied: bool = False) -> None:
        self.copies: list[Callable[[], object]] = []
        self.n_run = {id(self.copies): 0}
        self.demands: list[str] = []
        self._forget_copied = forget_copied

    def run(self, queue: list[Callable[[], object]], n_before: int) -> None:
        while self.n_run[id(queue)] < n_before:
            queue[self.n_run[id(queue)]]()
            self.n_run[id(queue)] += 1

    def buffer(self, n_bytes: int) -> Tensor:
        return torch.full((n_bytes,), 255, dtype=torch.uint8)

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        for source, target in zip(sources, targets, strict=True):
            assert source.dtype == target.dtype == torch.uint8 and source.shape == target.shape
            self.copies.append(partial(target.copy_, source))

    def copied(self) -> Fence:
        return ListFence(self, self.copies, len(self.copies))

    def computed(self) -> Fence:
        return ListFence(self, self.copies, 0)

    def copy_after(self, fence: Fence) -> None:
        self.demands.append("copy after compute")

    def compute_after(self, fence: Fence) -> None:
        self.demands.append("compute after copy")
        if not self._forget_copied:
            fence.wait()


def run(folder_of: MadeOf, device: ListDevice, n_buffers: int) -> tuple[bool, list[str]]:
    """Whether a network staged by that device answers what the plain one does, and what the arena's check says."""
    folder = folder_of("mixtral")
    with torch.no_grad(), load_streamed(folder, ram_bytes=10 * 8192, n_threads=2, piece_bytes=4096) as streamed:
        expected = plain_network(folder)(IDS).logits
        index: ExpertIndex = streamed.index
        stage = DeviceStage(index, streamed.arena, device, n_buffers)
        assert stage.buffer_bytes == n_buffers * 6144
        old = streamed.stream
        old.stage = stage
        return torch.equal(streamed.network(IDS).logits, expected), streamed.check()


@pytest.mark.parametrize("n_buffers", [1, 2, 5])
def test_a_ring_of_any_size_gives_the_same_answer(checkpoint_of: MadeOf, n_buffers: int) -> None:
    device = ListDevice()
    assert run(checkpoint_of, device, n_buffers) == (True, [])
    copies = device.demands.count("compute after copy")
    assert device.demands.count("copy after compute") == copies - n_buffers


def test_codes_and_scales_go_through_the_ring(tmp_path: Path) -> None:
    folder = write_coded("modelopt", "qwen3_moe", tmp_path, hidden_size=64, moe_intermediate_size=32).folder
    with torch.no_grad(), load_streamed(folder, ram_bytes=1 << 20) as streamed:
        expected = streamed.network(IDS).logits
        streamed.stream.stage = DeviceStage(streamed.index, streamed.arena, ListDevice(), 2)
        assert torch.equal(streamed.network(IDS).logits, expected) and streamed.check() == []
        streamed.stream.stage = DeviceStage(streamed.index, streamed.arena, ListDevice(forget_copied=True), 2)
        assert not torch.equal(streamed.network(IDS).logits, expected)


def test_a_forgotten_fence_is_seen(checkpoint_of: MadeOf) -> None:
    same, _ = run(checkpoint_of, ListDevice(forget_copied=True), 2)
    assert not same


class Full(PlainFormat):
    """A format whose device has no memory left."""

    def forward(self, module: Any, hidden: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        raise torch.OutOfMemoryError


def test_a_pass_that_fails_gives_its_buffer_back(checkpoint_of: MadeOf) -> None:
    with torch.no_grad(), load_streamed(checkpoint_of("mixtral"), ram_bytes=1 << 20) as streamed:
        stream, expected = streamed.stream, streamed.network(IDS).logits
        stream.stage = DeviceStage(streamed.index, streamed.arena, ListDevice(), 1)
        formats, stream._formats = stream._formats, (Full(),) * 3
        with pytest.raises(torch.OutOfMemoryError):
            streamed.network(IDS)
        stream._formats = formats
        assert torch.equal(streamed.network(IDS).logits, expected) and streamed.check() == []


class HalfBroken(ListDevice):
    """Its second copy fails when it is queued."""

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        super().copy(sources[:1], targets[:1])
        raise RuntimeError("no copy")


def test_a_row_of_which_a_part_is_being_copied_is_not_given_away(checkpoint_of: MadeOf) -> None:
    with torch.no_grad(), load_streamed(checkpoint_of("mixtral"), ram_bytes=1 << 20) as streamed:
        device = HalfBroken()
        streamed.stream.stage = DeviceStage(streamed.index, streamed.arena, device, 2)
        with pytest.raises(RuntimeError, match="no copy"):
            streamed.network(IDS)
        states = [streamed.arena.state(ExpertKey(0, expert)) for expert in range(N_EXPERTS)]
        assert states.count(RowState.COPYING) == 1 and len(device.copies) == 1


def test_a_buffer_that_is_computed_with_is_not_given_away(checkpoint_of: MadeOf) -> None:
    with load_streamed(checkpoint_of("mixtral"), ram_bytes=1 << 20) as streamed:
        stage = DeviceStage(streamed.index, streamed.arena, ListDevice(), 1)
        stream = ExpertStream(streamed.index, streamed.stream.source, streamed.arena, stage, (PlainFormat(),) * 3)
        rows = []
        for key in (ExpertKey(0, 0), ExpertKey(0, 1)):
            row = streamed.arena.take(key, 1)
            assert row is not None
            stream.ask(key, row)
            streamed.arena.finish(row)
            rows.append(row)
        stage.tensors(ExpertKey(0, 0), rows[0])
        with pytest.raises(AssertionError, match="still computed with"):
            stage.tensors(ExpertKey(0, 1), rows[1])
