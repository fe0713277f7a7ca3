"""Streamed experts on a CUDA device: what waits for what, under delays on every side; and what RAM is pinned."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import sleep
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from livingkv.cuda_queue import CudaQueue
from livingkv.device_queue import Fence
from livingkv.experts import ExpertIndex, Source, StreamedModel, load_streamed
from livingkv.experts.arena import Row, RowArena
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.formats import PlainFormat
from livingkv.experts.pread_source import PreadSource
from livingkv.experts.stage import DeviceStage
from livingkv.tiers.pinning import pin_for_cuda
from tests.experts.conftest import MadeOf
from tests.experts.test_equal import READ_AHEAD, answers, budget
from tests.experts.tiny_moe import FAMILIES, plain_network

DEVICE = torch.device("cuda")
MILLISECOND = 1_500_000
"""Cycles that torch.cuda._sleep is told; a little less than a millisecond on a fast device."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning"),
]


@contextmanager
def waits() -> Iterator[list[str]]:
    """Where the host waited for the device, as torch reports it: file and line of each time."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
            found += [f"{one.filename}:{one.lineno}" for one in caught if "synchronizing" in str(one.message)]


def waits_of(streamed: StreamedModel, ids: Tensor) -> list[str]:
    """Of one pass over those tokens."""
    with torch.no_grad(), waits() as found:
        streamed.network(ids, use_cache=False)
    return found


@pytest.mark.parametrize("read_ahead", READ_AHEAD)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_host_waits_once_for_each_layer(
    checkpoint_of: MadeOf, monkeypatch: pytest.MonkeyPatch, family: str, read_ahead: Literal["off", "on"]
) -> None:
    """With experts, as often as without them plus once for each layer: for a token and for a prompt."""
    with load_streamed(checkpoint_of(family), ram_bytes=1 << 20, device=DEVICE, read_ahead=read_ahead) as streamed:
        for ids in (torch.tensor([[17]], device=DEVICE), torch.tensor([[17, 5, 9, 80, 3]], device=DEVICE)):
            for _ in range(2):  # what is made once is made
                waits_of(streamed, ids)
            found = waits_of(streamed, ids)
            with monkeypatch.context() as without:
                without.setattr(streamed.stream, "forward", lambda layer, module, hidden, *_: torch.zeros_like(hidden))
                waits_of(streamed, ids)
                rest = waits_of(streamed, ids)
            assert len(found) == len(rest) + len(streamed.index.layers), found
            ours = [where for where in found if "livingkv/experts/stream" in where]
            assert len(ours) == len(streamed.index.layers), found


class SlowQueue(CudaQueue):
    """Copies begin up to some milliseconds late, or at once. forgets: the fence that it does not wait for."""

    def __init__(self, random: Random, milliseconds: int, forgets: str = "") -> None:
        super().__init__(DEVICE)
        self._random, self._cycles, self._forgets = random, milliseconds * MILLISECOND, forgets

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        if self._cycles:
            with torch.cuda.stream(self._copies):
                cycles = self._random.randrange(self._cycles // 2, self._cycles)
                torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        super().copy(sources, targets)

    def copy_after(self, fence: Fence) -> None:
        if self._forgets != "copy_after":
            super().copy_after(fence)

    def compute_after(self, fence: Fence) -> None:
        if self._forgets != "compute_after":
            super().compute_after(fence)


def slow_format(form: PlainFormat, random: Random, milliseconds: int) -> PlainFormat:
    """The same, whose kernels begin up to so many milliseconds late."""

    class SlowFormat(PlainFormat):
        def forward(self, module: Any, hidden: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
            cycles = milliseconds * MILLISECOND
            torch.cuda._sleep(random.randrange(cycles // 2, cycles))  # type: ignore[no-untyped-call]
            return PlainFormat.forward(self, module, hidden, tensors)

    return SlowFormat(form.sum_type)


def slow_source(random: Random) -> Any:
    """Reads that take up to a millisecond, by five threads."""

    def preadv(descriptor: int, targets: list[memoryview], offset: int) -> int:
        sleep(random.random() * 0.001)
        return os.preadv(descriptor, targets, offset)

    def made(index: ExpertIndex) -> Source:
        return PreadSource(index, CheckpointFiles(index.checkpoint, direct=True, preadv=preadv), 5, 4096)

    return made


def slowed(streamed: StreamedModel, queue: CudaQueue, n_buffers: int, kernel_milliseconds: int) -> None:
    """Let a model use that queue, and slow kernels."""
    stream = streamed.stream
    stream.stage = DeviceStage(streamed.index, streamed.arena, queue, n_buffers)
    formats = []
    for form in stream._formats:
        assert isinstance(form, PlainFormat)
        formats.append(slow_format(form, Random(n_buffers), kernel_milliseconds))
    stream._formats = tuple(formats)


@pytest.mark.parametrize("n_buffers", [1, 2, 3])
@pytest.mark.parametrize("n_rows", [1, 2, 7, 24])
def test_equal_however_late_reads_copies_and_kernels_are(checkpoint_of: MadeOf, n_rows: int, n_buffers: int) -> None:
    folder, random = checkpoint_of("mixtral"), Random(10 * n_rows + n_buffers)
    expected = answers(plain_network(folder).to(DEVICE))
    ram_bytes = budget(8192, n_rows, 5)
    with load_streamed(folder, ram_bytes=ram_bytes, source=slow_source(random), device=DEVICE) as streamed:
        assert streamed.arena.n_rows == n_rows
        slowed(streamed, SlowQueue(random, 2), n_buffers, 2)
        found = answers(streamed.network)
        assert [torch.equal(a, b) for a, b in zip(expected, found, strict=True)] == [True] * len(expected)
        assert streamed.check() == []


@pytest.mark.parametrize("forgets", ["copy_after", "compute_after", "copying"])
def test_must_break_a_forgotten_fence_is_seen(
    checkpoint_of: MadeOf, monkeypatch: pytest.MonkeyPatch, forgets: str
) -> None:
    folder = checkpoint_of("mixtral")
    expected = answers(plain_network(folder).to(DEVICE))
    if forgets == "copying":

        def forget(self: RowArena, row: Row, fence: Fence) -> None:
            pass

        monkeypatch.setattr(RowArena, "copying", forget)
    with load_streamed(folder, ram_bytes=budget(8192, 2, 2), n_threads=2, piece_bytes=4096, device=DEVICE) as streamed:
        late = (0, 20) if forgets == "copy_after" else (20, 1)  # copies and kernels: who would be waited for is late
        slowed(streamed, SlowQueue(Random(1), late[0], forgets), 2, late[1])
        found = answers(streamed.network)
        torch.cuda.synchronize()
    assert not all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_rows_are_pinned_and_read_past_the_page_cache(checkpoint_of: MadeOf) -> None:
    with load_streamed(checkpoint_of("qwen3_moe"), ram_bytes=1 << 20, device=DEVICE) as streamed:
        source = streamed.stream.source
        assert isinstance(source, PreadSource)
        was_direct = source._files.is_direct
        with torch.no_grad():
            streamed.network(torch.tensor([[5, 6, 7]], device=DEVICE))
        for row in streamed.arena._rows:
            assert torch.frombuffer(row.data[:], dtype=torch.uint8).is_pinned()
        assert source._files.is_direct == was_direct


def test_where_nothing_can_be_pinned_it_is_said_and_nothing_else_changes(
    checkpoint_of: MadeOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, runtime = checkpoint_of("qwen3_moe"), torch.cuda.cudart()  # type: ignore[no-untyped-call]
    expected = answers(plain_network(folder).to(DEVICE))

    class Refusing:
        def cudaHostRegister(self, address: int, n_bytes: int, flags: int) -> Any:  # noqa: N802 - CUDA's name
            return runtime.cudaHostRegister(0, n_bytes, flags)  # CUDA itself refuses, and keeps its error

        def __getattr__(self, name: str) -> Any:
            return getattr(runtime, name)

    monkeypatch.setattr(torch.cuda, "cudart", Refusing)
    with (
        caplog.at_level(logging.WARNING, "livingkv.tiers"),
        load_streamed(folder, ram_bytes=budget(8192, 7, 2), n_threads=2, piece_bytes=4096, device=DEVICE) as streamed,
    ):
        assert not torch.frombuffer(streamed.arena._rows[0].data[:], dtype=torch.uint8).is_pinned()
        assert all(torch.equal(a, b) for a, b in zip(expected, answers(streamed.network), strict=True))
    assert [record.message for record in caplog.records if "cannot be pinned" in record.message]


def test_close_gives_back_what_was_pinned_and_the_memory_of_the_device(checkpoint_of: MadeOf) -> None:
    folder: Path = checkpoint_of("qwen3_moe")
    levels = []
    for _ in range(3):
        with torch.no_grad(), load_streamed(folder, ram_bytes=1 << 20, device=DEVICE) as streamed:
            streamed.network(torch.tensor([[5, 6, 7]], device=DEVICE))
            memory = streamed.arena._memory
            again = pin_for_cuda(memory._address(), 4096)  # it is pinned already: this is refused
            again()
        del streamed, memory
        gc.collect()
        levels.append(torch.cuda.memory_allocated())
    assert levels[1] == levels[2]
