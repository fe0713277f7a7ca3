"""The config of Qwen2.5-1M: it loads with its dual-chunk positions and without them, and answers both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from livingkv import Memory, Settings
from livingkv.errors import FingerprintMismatch, InputError
from livingkv.models import AskedDualChunk, DualChunk, load_model
from tests.models.test_loading import model_folder

SETTINGS = Settings(window_tokens=256, block_tokens=64, codec="lossless")
QWEN_1M = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
TEXT = b"".join(b"The code of door %d is %d. " % (door, 1000 + door) for door in range(20))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model whose config is that of Qwen2.5-1M in what concerns positions."""
    changes: dict[str, Any] = {"max_position_embeddings": 1010000, "dual_chunk_attention_config": QWEN_1M}
    return model_folder(
        tmp_path / "qwen-1m", rope_parameters={"rope_type": "default", "rope_theta": 1e7}, **changes
    )  # fmt: skip


def answered(store: Path, folder: Path, dual_chunk: AskedDualChunk) -> tuple[str, bytes]:
    """An answer from a store that was made with this model, and the bytes of its first page."""
    model = load_model(folder, device="cpu", dual_chunk=dual_chunk)
    with Memory.open(store, model=model, settings=SETTINGS) as memory:
        memory.ingest("doors", text=TEXT)
        answer = memory.ask("What is the code of door 7?", mode="exact", session="default", max_tokens=6)
        assert answer.reused_tokens == memory.session("default").n_tokens > 200
        return answer.answer, memory._home.store().read_pages(1, [0])[0]


def test_on_and_off_are_the_same_below_the_chunk_size(tmp_path: Path, folder: Path) -> None:
    on, off = load_model(folder, device="cpu"), load_model(folder, device="cpu", dual_chunk="off")
    assert (on.dual_chunk, off.dual_chunk) == (DualChunk(262144, 8192, 262144), None)
    assert on.shape.native_context == off.shape.native_context == 262144
    ids = torch.arange(3, 90)[None]
    assert torch.equal(on.network(ids).logits, off.network(ids).logits)
    assert answered(tmp_path / "on", folder, None) == answered(tmp_path / "off", folder, "off")


def test_a_store_of_one_is_not_opened_with_the_other(tmp_path: Path, folder: Path) -> None:
    answered(tmp_path / "on", folder, None)
    off = load_model(folder, device="cpu", dual_chunk="off")
    with pytest.raises(FingerprintMismatch, match="rope"):
        Memory.open(tmp_path / "on", model=off)


@pytest.mark.parametrize("broken", [{"chunk_size": 262144}, {**QWEN_1M, "local_size": 262144}, "on"])
def test_a_broken_config_is_one_clear_line(folder: Path, broken: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dual_chunk_attention_config": broken}))
    with pytest.raises(InputError, match=r"chunk_size|local_tokens") as caught:
        load_model(folder, device="cpu")
    assert "\n" not in str(caught.value)


def test_anything_else_than_off_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match='"off", "config" or None is allowed'):
        load_model(folder, device="cpu", dual_chunk="on")  # type: ignore[arg-type]
