"""Recording a step: what runs the same kernels again without Python. CUDA graphs, and their stand-in without a GPU.

Knows callables that read and write tensors at fixed addresses; knows no network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

_WARM_UPS = 2
"""Runs before a recording: kernels are compiled and libraries make their handles outside of it."""


class Recorder(Protocol):
    """Turns a step into one that is replayed."""

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Runs `step` a few times; the result runs it again, on the tensors that it used, and keeps them. Raises what
        `step` raises."""
        ...

    def seconds(self, replay: Callable[[], None]) -> float:
        """How long one replay takes. Blocks."""
        ...


class CudaRecorder:
    """Recordings as CUDA graphs, which share one memory pool: they are replayed one after the other, and what a step
    leaves behind is copied out of the pool before the next. Other threads may use the device meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """See Recorder."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                step()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            step()
        return _Replay(graph, step)

    def seconds(self, replay: Callable[[], None], n_times: int = 5) -> float:
        """See Recorder: the mean of several, one after the other."""
        before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        replay()
        before.record()
        for _ in range(n_times):
            replay()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1000 / n_times


class _Replay:
    """A graph, and the step whose tensors it reads and writes: they must not go before it does."""

    def __init__(self, graph: torch.cuda.CUDAGraph, step: Callable[[], None]) -> None:
        self._graph = graph
        self._step = step

    def __call__(self) -> None:
        """Queued on the current stream."""
        self._graph.replay()


class NoRecorder:
    """The stand-in: a replay is the step itself."""

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """See Recorder."""
        step()
        return step

    def seconds(self, replay: Callable[[], None]) -> float:
        """Nothing is gained by choosing."""
        return 0.0
