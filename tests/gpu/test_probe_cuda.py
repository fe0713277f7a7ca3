"""The probe measures a CUDA device, and its figures make sense beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from livingkv.planner import probe_drive
from livingkv.planner.inputs import MEASURABLE
from livingkv.planner.probe import probe

pytestmark = pytest.mark.gpu


def test_a_device_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_drive, "_FILE_BYTES", 1 << 24)
    found = probe(tmp_path, seconds=0.1)
    assert found.device == torch.cuda.get_device_name()
    speeds = {name: one.value for name, one in found.parts.items() if name in MEASURABLE}
    assert all(speeds[name] for name in ("vram", "bw_vram", "bw_pcie", "flops_device")), found.parts
    vram, bus = speeds["bw_vram"], speeds["bw_pcie"]
    assert vram is not None and bus is not None and 1e9 < bus < vram < 1e14
    assert torch.cuda.memory_allocated() < 1 << 28  # buffers are gone; libraries keep some
