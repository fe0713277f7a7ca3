"""What a pass over experts asks of a device: the router's choice once, and nothing else that has to be waited for.

Counted here by the operations that a pass calls on the CPU; tests/gpu counts what a device itself reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from livingkv.experts import StreamedModel, load_streamed
from livingkv.experts.formats import PlainFormat
from livingkv.experts.loading import N_DEVICE_BUFFERS
from livingkv.experts.stage import DeviceStage
from tests.experts.conftest import MadeOf
from tests.experts.test_device_stage import ListDevice
from tests.experts.tiny_moe import FAMILIES

TOLD = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "masked_select", "equal", "unique", "_unique2")
"""Operations whose answer or whose size depends on values, so that the host waits for them on a device."""
MADE = "lift_fresh"
"""What torch.tensor calls: values of the host become a tensor."""


class Called(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by name, and index operations whose size depends on values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        if func.overloadpacket.__name__ == "index":
            self.counts["bool index"] += any(one is not None and one.dtype == torch.bool for one in args[1])
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(streamed: StreamedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """What all passes over experts call, as "tolist" those that bring values to the host."""
    called, forward, tolist = Called(), streamed.stream.forward, Tensor.tolist

    def noted(self: Tensor) -> Any:
        called.counts["tolist"] += 1
        return tolist(self)

    def watched(*args: Any) -> Tensor:
        with called, pytest.MonkeyPatch.context() as inner:
            inner.setattr(Tensor, "tolist", noted)
            return forward(*args)

    monkeypatch.setattr(streamed.stream, "forward", watched)
    yield called.counts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_is_one_transfer_for_each_layer(
    family: str, checkpoint_of: MadeOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load_streamed(checkpoint_of(family), ram_bytes=1 << 20, n_threads=2, read_ahead="off") as streamed:
        streamed.stream.stage = DeviceStage(streamed.index, streamed.arena, ListDevice(), N_DEVICE_BUFFERS)
        with torch.no_grad(), counted(streamed, monkeypatch) as counts:
            streamed.network(torch.tensor([[17]]))
            assert counts["tolist"] == len(streamed.index.layers)
            assert not [name for name in (*TOLD, "bool index") if counts[name]]
            is_hashed = family == "deepseek_v4"  # its table may choose an expert twice, which is no OneTokenRoute
            assert counts[MADE] <= is_hashed
            counts.clear()
            streamed.network(torch.tensor([[17, 5, 9, 80, 3]]))
            assert counts["tolist"] == counts[MADE] == len(streamed.index.layers)
            assert not [name for name in (*TOLD, "bool index") if counts[name]]


def test_must_break_a_hidden_transfer_is_seen(checkpoint_of: MadeOf, monkeypatch: pytest.MonkeyPatch) -> None:
    weigh = PlainFormat.weigh

    def looking(self: PlainFormat, output: Tensor, weights: Tensor) -> Tensor:
        return weigh(self, output, weights) if weights[0, 0] > 0 else output

    with load_streamed(checkpoint_of("mixtral"), ram_bytes=1 << 20, n_threads=2, read_ahead="off") as streamed:
        monkeypatch.setattr(PlainFormat, "weigh", looking)
        with torch.no_grad(), counted(streamed, monkeypatch) as counts:
            streamed.network(torch.tensor([[17]]))
            assert sum(counts[name] for name in TOLD) > 0
