"""Which pack is read from: one that is named, one that lies in the model's folder, none; everything that streams."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
import torch

from livingkv.errors import ExpertReadError, PackError, PackOfAnother
from livingkv.experts import StreamedModel, load_streamed, pack
from livingkv.experts.pack_choice import PACK
from livingkv.experts.pack_index import PackIndex
from livingkv.memory import Memory
from livingkv.model_choice import ModelChoice
from livingkv.state_model import load_state_model
from tests.experts.conftest import Packed, index_of
from tests.experts.talking_moe import FEW_BYTES, talking_checkpoint
from tests.experts.test_pack_index import flip

IDS = torch.tensor([[5, 17, 80, 3, 44, 9]])


@pytest.fixture(name="found")
def lay_pack(packed: Packed) -> Packed:
    """A checkpoint with its pack where it is found."""
    shutil.move(packed.pack, packed.folder / PACK)
    return Packed(packed.folder, packed.folder / PACK)


def load(folder: Path, place: str | Path = "auto") -> StreamedModel:
    return load_streamed(folder, ram_bytes=FEW_BYTES, pack=place, piece_bytes=8192)


def test_a_pack_in_the_models_folder_is_found(found: Packed, tmp_path: Path) -> None:
    with load(found.folder) as auto, load(found.folder, "off") as off, load(found.folder, found.pack) as named:
        assert isinstance(auto.index, PackIndex) and isinstance(named.index, PackIndex)
        assert not isinstance(off.index, PackIndex)
        with torch.no_grad():
            logits = [one.network(IDS).logits for one in (off, auto, named)]
        assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])
        assert auto.counts().source.n_reads == auto.counts().source.n_experts > 0
        assert {one.checkpoint.fingerprint for one in (off, auto, named)} == {off.index.checkpoint.fingerprint}
    with pytest.raises(PackError, match="there is no pack of experts in it"):
        load(found.folder, tmp_path / "auto")


def test_one_of_other_files_is_left_where_it_was_not_named(found: Packed, caplog: pytest.LogCaptureFixture) -> None:
    file = found.folder / "model.safetensors"
    os.utime(file, ns=(1, 1))
    with caplog.at_level(logging.WARNING), load(found.folder) as streamed:
        assert not isinstance(streamed.index, PackIndex)
    assert [record.message for record in caplog.records] == [
        f"{found.pack}: it is a pack of another checkpoint (model.safetensors changed since); remove it and pack "
        "again; until then experts are read from the model's own files"
    ]
    with pytest.raises(PackOfAnother, match="changed since"):
        load(found.folder, found.pack)


@pytest.mark.parametrize("damage", ["manifest", "blocks", "empty", "file", "dangling"])
def test_a_damaged_one_is_refused_though_it_was_not_named(found: Packed, damage: str) -> None:
    if damage == "manifest":
        (found.pack / "manifest.json").write_bytes(b"{}")
    elif damage == "blocks":
        os.truncate(found.pack / "experts.bin", 4096)
    else:
        shutil.rmtree(found.pack)
        if damage == "empty":
            found.pack.mkdir()
        elif damage == "file":
            found.pack.write_bytes(b"x")
        else:
            found.pack.symlink_to("nowhere")
    with pytest.raises(PackError, match=r"experts\.pack"):
        load(found.folder)
    load(found.folder, "off").close()


def test_memory_reads_from_the_pack_and_damage_is_no_answer(tmp_path: Path) -> None:
    folder = talking_checkpoint("qwen3_moe", tmp_path / "model")
    pack(index_of(folder), folder / PACK)
    choice = ModelChoice(folder, "fp32", None, FEW_BYTES)
    with Memory.open(tmp_path / "s", model=choice) as memory:
        memory.ingest("note", text=b"Karl has a boat. It is green.")
        answer = memory.ask("Who has a boat?", mode="kv", max_tokens=4).answer
    blocks = folder / PACK / "experts.bin"
    with Memory.open(tmp_path / "s", model=ModelChoice(folder, "fp32", None, FEW_BYTES, "off")) as memory:
        assert memory.ask("Who has a boat?", mode="kv", max_tokens=4).answer == answer
    for start in range(0, blocks.stat().st_size, 8192):
        flip(blocks, start + 600)
    with Memory.open(tmp_path / "s", model=choice) as memory, pytest.raises(ExpertReadError, match="checksum of"):
        memory.ask("Who has a boat?", mode="kv", max_tokens=4)


def test_states_are_the_same_with_and_without(tmp_path: Path) -> None:
    folder = talking_checkpoint("qwen3_next", tmp_path / "model")
    plain = load_state_model(ModelChoice(folder, "fp32", None, FEW_BYTES), "its state")
    pack(index_of(folder), folder / PACK)
    packed = load_state_model(ModelChoice(folder, "fp32", None, FEW_BYTES), "its state")
    assert isinstance(packed.streamed.index, PackIndex) and packed.digest == plain.digest
    plain.close()
    packed.close()
