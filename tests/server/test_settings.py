"""The settings of a service: small blocks where the model lies on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from livingkv.server.options import ServerOptions
from livingkv.server.service import Service
from livingkv.server.settings import cancellable_settings
from livingkv.settings import Settings
from tests.server.serving import tiny_model


@pytest.mark.parametrize(
    ("device", "asked", "block", "commit"),
    [("cpu", None, 64, 512), ("cpu", 128, 128, 512), ("cuda", None, None, 4096), ("cuda:1", 128, 128, 4096)],
)
def test_blocks_and_commits_are_small_where_the_model_lies_on_a_cpu(
    device: str, asked: int | None, block: int | None, commit: int
) -> None:
    settings = Settings(block_tokens=asked, window_tokens=1024)
    commit = 512 if device == "cpu" else 4096
    want = Settings(block_tokens=block, window_tokens=1024, commit_tokens=commit)
    assert cancellable_settings(settings, torch.device(device)) == want


def test_a_service_goes_by_the_device_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    service = Service(ServerOptions(tmp_path / "stores", settings=Settings(window_tokens=1024)), tiny_model())
    service._prepare()
    assert service._parts is not None and service._parts.settings.block_tokens == 64
    service._finish()
