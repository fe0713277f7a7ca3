"""The settings of a service: small blocks where the model lies on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from livingkv.errors import InputError, ModelNotFound
from livingkv.memory import Memory
from livingkv.models import from_network
from livingkv.server.options import ServerOptions
from livingkv.server.service import Service
from livingkv.server.settings import cancellable_settings
from livingkv.settings import Settings
from tests.server.serving import serving, talk, tiny_model
from tests.tiny import tiny_network, tiny_tokenizer


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


@pytest.mark.parametrize("name", ["max_batch", "n_side_by_side", "n_waiting", "max_uploads", "idle_s", "stop_s"])
def test_options_are_numbers_within_their_ranges(tmp_path: Path, name: str) -> None:
    for wrong in (-1, float("nan"), True, "8", *(() if name.endswith("_s") else (0, 1.5))):
        with pytest.raises(InputError, match=name):
            ServerOptions(tmp_path, **{name: wrong})


@pytest.mark.parametrize(
    ("asked", "named"),
    [({"codec": "lossless"}, "codec"), ({"span_tokens": 256}, "span"), ({"embedder": "states"}, "embedder")],
)
def test_a_store_that_was_made_otherwise_is_told_of_at_the_start_and_is_the_services_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: dict[str, Any], named: str
) -> None:
    with serving(tmp_path / "stores") as served:
        served.chat("The shed is blue.", session="a")
    settings = replace(Settings(block_tokens=64, window_tokens=1024), **asked)
    with serving(tmp_path / "stores", settings=settings) as served:
        told = [record.getMessage() for record in caplog.records if "will be refused" in record.getMessage()]
        assert len(told) == 1 and named in told[0] and "default" in told[0]
        for answer in (
            served.post({"messages": talk("The key is here."), "session": "b"}),
            served.client.post("/v1/memory/turn", json={"messages": talk("The key is here.")}),
            served.client.get("/v1/stats"),
        ):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["type"]) == (500, "service_settings", "server_error")
            assert named in error["message"] and str(tmp_path) not in error["message"]
    with Memory.open(tmp_path / "stores" / "default", read_only=True) as memory:
        assert [row.name for row in memory.sessions()] == ["a"]


def test_an_embedder_that_cannot_be_had_ends_the_start(tmp_path: Path) -> None:
    settings = Settings(window_tokens=1024, embedder="nothing of this name")
    with pytest.raises(ModelNotFound, match="nothing of this name"):
        Service(ServerOptions(tmp_path / "stores", settings=settings), tiny_model())._prepare()


def test_a_store_of_another_model_is_told_of_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path / "stores") as served:
        served.chat("The shed is blue.", session="a")
    other = from_network(tiny_network("qwen2", seed=1), tiny_tokenizer(), name="other")
    with serving(tmp_path / "stores", other) as served:
        answer = served.post({"messages": talk("The key is here.")})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "service_settings")
    assert any("will be refused" in record.getMessage() for record in caplog.records)
