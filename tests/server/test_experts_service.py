"""The service over a model that streams its experts: the same routes, the same tokens, and its counts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from livingkv.model_choice import ModelChoice
from livingkv.models import from_network, load_model
from livingkv.server.experts_census import ExpertsCensus, streaming_of
from tests.experts.talking_moe import FEW_BYTES, talking_checkpoint
from tests.experts.tiny_moe import plain_network
from tests.server.serving import Served, said, serving, slowly
from tests.tiny import tiny_tokenizer


@pytest.fixture(scope="module", name="folder")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with experts."""
    return talking_checkpoint("qwen3_moe", tmp_path_factory.mktemp("moe"))


@pytest.fixture(scope="module", name="streamed")
def start_streamed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service whose model streams its experts."""
    model = load_model(folder, weights="fp32", device="cpu", experts_ram_bytes=FEW_BYTES)
    with serving(tmp_path_factory.mktemp("streamed") / "stores", model) as served:
        yield served
    model.close()


@pytest.mark.slow
def test_the_routes_answer_as_with_the_whole_model(streamed: Served, folder: Path, tmp_path: Path) -> None:
    def used(served: Served) -> tuple[object, ...]:
        first = served.chat("Hello, the shed is blue", session="anna")
        second = served.chat("Hello, the shed is blue", said(first), "Which colour?", session="anna")
        turn = {"session": "other", "messages": [{"role": "user", "content": "Karl has a boat"}]}
        served.client.post("/v1/memory/turn", json=turn).raise_for_status()
        asked = served.client.post("/v1/memory/ask", json={"query": "Who has a boat?", "mode": "kv"}).json()
        return said(first), said(second), second["usage"], asked["answer"]

    with serving(tmp_path / "stores", from_network(plain_network(folder), tiny_tokenizer())) as whole:
        assert used(streamed) == used(whole)
        assert whole.client.get("/v1/stats").json()["backend"] == "whole"
        assert "\nlivingkv_experts_hits_total " not in whole.client.get("/metrics").text
    assert streamed.client.get("/v1/stats").json()["backend"] == "experts"


def test_what_was_read_is_counted(folder: Path) -> None:
    model = load_model(folder, weights="fp32", device="cpu", experts_ram_bytes=FEW_BYTES)
    assert model.experts is not None
    told = {family.name: family.samples for family in ExpertsCensus(lambda: None).collect()}
    assert not any(told.values())  # names and nothing else while no experts are streamed
    streaming = streaming_of(model.experts)
    counts = model.experts.counts()
    values = {
        sample.name.removeprefix("livingkv_experts_"): sample.value
        for family in ExpertsCensus(lambda: streaming).collect()
        for sample in family.samples
    }
    assert set(values) == {
        "read_bytes_total", "wasted_bytes_total", "hits_total", "misses_total", "waited_seconds_total",
        "pass_seconds_total", "pass_tokens_total", "ahead_used_total", "ahead_wasted_total", "ahead_on",
        "ram_bytes", "drive_bytes_per_second",
    }  # fmt: skip
    assert (values["hits_total"], values["misses_total"]) == (counts.n_hits, counts.n_misses)
    assert values["read_bytes_total"] == counts.source.n_bytes and values["drive_bytes_per_second"] > 0
    model.close()


def test_a_scrape_has_them(streamed: Served) -> None:
    streamed.chat("Hello")
    text = streamed.client.get("/metrics").text
    values = dict(line.split() for line in text.splitlines() if line.startswith("livingkv_experts_"))
    assert float(values["livingkv_experts_misses_total"]) > 0 and float(values["livingkv_experts_read_bytes_total"]) > 0


@pytest.mark.slow
def test_a_shard_that_is_replaced_meanwhile_is_an_error_and_no_text(tmp_path: Path) -> None:
    folder = talking_checkpoint("qwen3_moe", tmp_path / "model")
    with serving(tmp_path / "stores", ModelChoice(folder, "fp32", None, FEW_BYTES)) as served:
        assert said(served.chat("Hello")) is not None
        file = folder / "model.safetensors"
        copy = file.with_name("copy")
        copy.write_bytes(file.read_bytes())
        copy.replace(file)  # the same bytes, another file
        answer = served.post({"messages": [{"role": "user", "content": "The shed is blue, whose is it?"}]})
        assert answer.status_code == 500 and "choices" not in answer.json()
        assert served.client.get("/health").status_code == 200


def test_replies_share_passes(streamed: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(prefix: str) -> Iterator[str]:
        with ThreadPoolExecutor(3) as pool:
            yield from pool.map(
                lambda n: said(streamed.chat(f"Tell me about {n}", user=f"{prefix}{n}", max_tokens=16)), range(3)
            )

    alone = [said(streamed.chat(f"Tell me about {n}", user=f"a{n}", max_tokens=16)) for n in range(3)]
    slowly(monkeypatch, 0.02)
    rows, passes = streamed.count("batch_rows_sum"), streamed.count("batch_rows_count")
    assert list(asked("b")) == alone
    assert streamed.count("batch_rows_sum") - rows > streamed.count("batch_rows_count") - passes
