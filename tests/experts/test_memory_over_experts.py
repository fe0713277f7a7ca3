"""A memory whose model streams its experts does what it does with the same model loaded whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv.errors import InputError, UnsupportedModel
from livingkv.memory import Memory
from livingkv.model_choice import ModelChoice
from livingkv.models import LoadedModel, from_network, load_model
from livingkv.settings import Settings
from livingkv.store import Store
from tests.experts.talking_moe import FEW_BYTES, talking_checkpoint
from tests.experts.tiny_moe import plain_network
from tests.tiny import tiny_tokenizer

TEXT = b"The code of the shed is 4711. Anna called on Friday about the roof. Nobody paints it. " * 6
SETTINGS = Settings(block_tokens=64)
FAMILIES = ["qwen3_moe", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2_moe", "olmoe", "mixtral"))]


def used(path: Path, model: LoadedModel) -> tuple[list[int], str, str, tuple[float, ...]]:
    """A store written and asked with a model: all token ids, an answer, a reply, and the likelihoods behind them."""
    with Memory.open(path, model=model, settings=SETTINGS) as memory:
        memory.ingest("note", text=TEXT)
        answer = memory.ask("What is the code of the shed?", mode="kv", max_tokens=12)
        turn = memory.chat("Hello there, who called?", max_tokens=24)
    with Store.open(path, mode="read") as store:
        row = store.session("default")
        ids = store.token_ids(row.session_id, 0, row.n_tokens).tolist()
    return ids, answer.answer, turn.answer, tuple(float(each.score) for each in answer.evidence)


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_is_that_of_eager_experts(family: str, tmp_path: Path) -> None:
    folder = talking_checkpoint(family, tmp_path / "model")
    wanted = used(tmp_path / "whole", from_network(plain_network(folder), tiny_tokenizer()))
    streamed = load_model(folder, weights="fp32", device="cpu", experts_ram_bytes=FEW_BYTES)
    try:
        assert used(tmp_path / "streamed", streamed) == wanted
        assert streamed.experts is not None and streamed.experts.check() == []
        counts = streamed.experts.counts()
        assert counts.n_misses > 24 and counts.n_hits > 0  # more misses than experts: some had to go
        clock = streamed.experts.clock
        assert clock.n_passes * 3 == counts.n_passes and clock.n_tokens * 3 == counts.n_tokens
        assert 0 < counts.waited_s < clock.seconds
    finally:
        streamed.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "olmoe", "mixtral"])
def test_tokens_are_those_of_the_model_loaded_whole(family: str, tmp_path: Path) -> None:
    folder = talking_checkpoint(family, tmp_path / "model")
    wanted = used(tmp_path / "whole", load_model(folder, weights="fp32", device="cpu"))
    streamed = load_model(folder, weights="fp32", device="cpu", experts_ram_bytes=FEW_BYTES)
    found = used(tmp_path / "streamed", streamed)
    streamed.close()
    assert found[:3] == wanted[:3] and found[3] == pytest.approx(wanted[3], abs=1e-3)  # other kernels


@pytest.mark.slow
def test_a_store_is_the_same_for_both(tmp_path: Path) -> None:
    folder = talking_checkpoint("qwen3_moe", tmp_path / "model")
    with Memory.open(tmp_path / "s", model=ModelChoice(folder, "fp32"), settings=SETTINGS) as memory:
        memory.ingest("note", text=TEXT)
        whole = memory.ask("Who called?", mode="kv", max_tokens=8).answer
    streamed = ModelChoice(None, None, None, FEW_BYTES)  # the store knows which model, and how it was loaded
    with Memory.open(tmp_path / "s", model=streamed) as memory:
        assert memory.ask("Who called?", mode="kv", max_tokens=8).answer == whole
        assert memory.chat("Go on", max_tokens=4).answer is not None
    with pytest.raises(InputError, match="one expert and the buffers"):
        load_model(folder, experts_ram_bytes=10_000)


def test_what_cannot_be_streamed_is_one_line(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match="no mixture of them: load it without streaming"):
        load_model(tiny_folder, experts_ram_bytes=1 << 20)
    folder = talking_checkpoint("qwen3_moe", tmp_path / "model")
    with pytest.raises(InputError, match="bf16 or fp32 is allowed where experts are streamed"):
        load_model(folder, weights="8bit", device="cpu", experts_ram_bytes=1 << 20)


def test_streaming_reads_in_large_blocks() -> None:
    plain, chosen = Settings(), Settings(block_tokens=192)
    for look, n_tokens in ((plain.conversation, 1024), (plain.document, 4096)):
        assert plain.pass_tokens(look, on_gpu=False, streamed=True) == n_tokens
        assert chosen.pass_tokens(look, on_gpu=False, streamed=True) == 192
