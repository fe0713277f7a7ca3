"""`livingkv serve --backend experts` as a process of its own: killed, started again, gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.experts.talking_moe import FEW_BYTES, talking_checkpoint
from tests.server.serving import CHAT, cached, said, talk
from tests.server.serving_process import process

pytestmark = pytest.mark.slow  # starts processes

OPTIONS = ("--weights", "fp32", "--backend", "experts", "--ram-gb", str(2 * FEW_BYTES / 1e9))


def chat(client: httpx.Client, *texts: str) -> dict[str, Any]:
    """A turn, greedy and short."""
    answer = client.post(CHAT, json={"messages": talk(*texts), "temperature": 0, "max_tokens": 8})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_next"])
def test_a_conversation_goes_on_after_a_kill(family: str, tmp_path: Path) -> None:
    folder = talking_checkpoint(family, tmp_path / "model")
    with process(tmp_path / "s", folder, *OPTIONS) as (served, client):
        first = chat(client, "The shed is blue.")
        served.kill()
        served.wait()
    with process(tmp_path / "s", folder, *OPTIONS) as (served, client):
        second = chat(client, "The shed is blue.", said(first), "Which colour?")
        assert cached(first) == 0 < cached(second)
        assert "\nlivingkv_experts_misses_total " in client.get("/metrics").text
        served.terminate()
        assert served.wait(15) == 0
    with process(tmp_path / "other", folder, *OPTIONS) as (_, client):
        assert said(chat(client, "The shed is blue.")) == said(first)
