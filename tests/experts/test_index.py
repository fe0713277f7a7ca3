"""The index finds every expert's bytes in the files, whatever the architecture calls them and however they lie."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from livingkv.errors import ModelDamaged, UnsupportedModel
from livingkv.experts.arena import Row
from livingkv.experts.checkpoint import read_checkpoint
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.index import ExpertIndex, build_index
from livingkv.experts.keys import ExpertKey, PartName
from livingkv.experts.names import expert_tensors
from livingkv.experts.pread_source import PreadSource
from livingkv.experts.skeleton import causal_class, expert_modules, skeleton
from livingkv.experts.stage import row_views
from livingkv.model_loading import read_config
from livingkv.tiers.arena import Arena
from tests.experts.conftest import MadeOf
from tests.experts.tiny_moe import FAMILIES, N_EXPERTS, plain_network


def index_of(folder: Path, *, for_device: bool = False) -> ExpertIndex:
    """The index of a checkpoint, without a network."""
    found, config = causal_class(read_config(folder))
    bare = skeleton(found, config, torch.float32)
    modules = expert_modules(bare)
    checkpoint = read_checkpoint(folder)
    return build_index(checkpoint, modules, expert_tensors(checkpoint.tensors, bare, modules), for_device=for_device)


def read_all(index: ExpertIndex, *, piece_bytes: int = 4096) -> dict[ExpertKey, dict[str, torch.Tensor]]:
    """Every expert, read through a source into a row that held other bytes before."""
    source = PreadSource(index, CheckpointFiles(index.checkpoint, direct=True), 2, piece_bytes)
    arena = Arena(1, index.row_bytes)
    found = {}
    for key in index.experts():
        row = Row(0, arena.view(0))
        row.data[:] = b"\xff" * len(row.data)
        source.read(key, row.data).result(timeout=10)
        found[key] = {name: tensor.clone() for name, tensor in row_views(index, key, row).items()}
    source.close()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_expert_is_that_of_the_network(checkpoint_of: MadeOf, family: str) -> None:
    folder = checkpoint_of(family)
    network: Any = plain_network(folder)
    for for_device in (False, True):
        index = index_of(folder, for_device=for_device)
        assert len(index.layers) == 3
        for key, tensors in read_all(index).items():
            module = network.get_submodule(index.layers[key.layer].module)
            assert set(tensors) == set(dict(module.named_parameters()))
            for name, tensor in tensors.items():
                assert torch.equal(tensor, getattr(module, name)[key.expert])


def test_parts_have_names_and_places(checkpoint_of: MadeOf) -> None:
    folder = checkpoint_of("mixtral")
    index = index_of(folder)
    stored = load_file(folder / "model.safetensors")
    names = [part.name for part in index.layers[1].parts]
    assert names == [PartName("down_proj", 0), PartName("gate_up_proj", 0), PartName("gate_up_proj", 1)]
    file, offset, length = index.part(ExpertKey(1, 5), PartName("gate_up_proj", 1))
    data = index.checkpoint.files[file].path.read_bytes()[offset : offset + length]
    wanted = stored["model.layers.1.block_sparse_moe.experts.5.w3.weight"]
    assert data == bytes(wanted.view(torch.uint8).numpy().data)
    assert index.name(ExpertKey(1, 5)) == "model.layers.1.mlp.experts.5"
    with pytest.raises(KeyError):
        index.part(ExpertKey(1, 5), PartName("gate_up_proj", 2))


def test_the_report_says_what_reading_costs(checkpoint_of: MadeOf) -> None:
    adjacent = index_of(checkpoint_of("qwen3_moe")).report()
    assert (adjacent.n_layers, adjacent.n_experts, adjacent.expert_bytes) == (3, 3 * N_EXPERTS, 3 * 4 * 16 * 32)
    assert adjacent.reads_per_expert == 1 and not adjacent.pack_pays
    assert 0 < adjacent.padding_share < 0.6
    scattered = index_of(checkpoint_of("gpt_oss")).report()
    assert scattered.reads_per_expert > 2 and scattered.pack_pays


def test_scattered_parts_in_several_files_are_found(checkpoint_of: MadeOf, tmp_path: Path) -> None:
    folder = checkpoint_of("qwen3_moe")
    shutil.copy(folder / "config.json", tmp_path)
    stored = load_file(folder / "model.safetensors")
    for number, part in enumerate(("gate_proj", "up_proj", "down_proj", "")):
        chosen = {name: stored.pop(name) for name in list(stored) if part in name and (part == "" or "experts" in name)}
        save_file(chosen, tmp_path / f"part-{number}.safetensors")
    index = index_of(tmp_path)
    assert index.report().reads_per_expert == 3 and index.report().pack_pays
    whole = read_all(index_of(folder))
    for key, tensors in read_all(index).items():
        assert all(torch.equal(tensor, whole[key][name]) for name, tensor in tensors.items())


def test_an_expert_of_several_pieces_arrives_whole(checkpoint_of: MadeOf) -> None:
    index = index_of(checkpoint_of("qwen3_moe"))
    small, large = read_all(index, piece_bytes=4096), read_all(index, piece_bytes=1 << 16)
    assert all(torch.equal(small[key][name], large[key][name]) for key in small for name in small[key])


def changed(folder: Path, to: Path, change: Any) -> Path:
    """A copy of a checkpoint whose tensors went through `change`."""
    shutil.copy(folder / "config.json", to)
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, to / "model.safetensors")
    return to


def test_missing_surplus_and_misshapen_experts_are_refused(checkpoint_of: MadeOf, tmp_path: Path) -> None:
    folder = checkpoint_of("qwen3_moe")
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    for number, (change, reason) in enumerate(
        [
            (lambda stored: stored.pop(name), "expert 3 has no gate_up_proj"),
            (lambda stored: stored.update({name: torch.zeros(2, 2)}), "another shape or type"),
            (lambda stored: stored.update({name.replace(".3.", ".8."): torch.zeros(2)}), "has 8 experts"),
            (
                lambda stored: [stored.pop(one) for one in list(stored) if "1.mlp.experts" in one and "down" in one],
                "down_proj: the checkpoint lacks it",
            ),
            (
                lambda stored: stored.update({"model.layers.1.mlp.experts.down_proj": torch.zeros(4, 2)}),
                "is not 8 experts",
            ),
        ]
    ):
        copy = tmp_path / str(number)
        copy.mkdir()
        with pytest.raises(ModelDamaged, match=reason):
            index_of(changed(folder, copy, change))


def test_a_network_without_experts_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match="has no experts"):
        index_of(tiny_folder)
