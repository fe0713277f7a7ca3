"""qwen4_exp with its n-gram tables on disk: what transformers computes, bit for bit, or an error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from livingkv.errors import CheckpointChanged, ModelDamaged, StagedRowsError, UnsupportedModel
from livingkv.experts import RowSettings, StreamedModel, load_streamed
from livingkv.experts.checkpoint import read_checkpoint
from livingkv.experts.quantization import StoredAs
from livingkv.experts.row_codes import decoded_table, sharing_of
from livingkv.experts.row_loading import find_tables
from livingkv.experts.skeleton import causal_class, skeleton
from livingkv.model_loading import read_config
from livingkv.snapshots import cache_argument
from tests.experts.coded_moe import CONFIGS
from tests.experts.tiny_moe import make_checkpoint, plain_network

IDS = torch.tensor([[5, 17, 80, 3, 44, 9, 1, 22, 5, 17, 80, 3]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables, in twelve parts each, so that part 10 comes after part 9 and not after part 1."""
    path = tmp_path_factory.mktemp("tables")
    return make_checkpoint("qwen4_exp_text", path, ple_layer_ids=[1, 3], split_ngram_parts=12)


def load(folder: Path, **rows: int) -> StreamedModel:
    return load_streamed(folder, ram_bytes=1 << 20, rows=RowSettings(n_threads=4, parity=True, **rows))


def test_logits_are_those_of_transformers(folder: Path) -> None:
    plain = plain_network(folder)
    name = cache_argument(plain)
    with load(folder) as streamed, torch.no_grad():
        assert not [name for name in streamed.network.state_dict() if "ngram_embedding" in name]
        assert torch.equal(streamed.network(IDS).logits, plain(IDS).logits)
        ours, theirs = streamed.network(IDS[:, :5], use_cache=True), plain(IDS[:, :5], use_cache=True)
        for position in range(5, IDS.shape[1]):
            token = IDS[:, position : position + 1]
            ours = streamed.network(token, **{name: ours[name]}, use_cache=True)
            theirs = plain(token, **{name: theirs[name]}, use_cache=True)
            assert torch.equal(ours.logits, theirs.logits)
        assert streamed.tables is not None
        counts = list(streamed.tables.counts().values())
    assert len(counts) == 2
    assert all(count.n_stages == 9 and count.n_compared > 0 and count.n_different == 0 for count in counts)


@pytest.mark.slow
def test_padded_batches_and_generation_are_those_of_transformers(folder: Path) -> None:
    plain, mask = plain_network(folder), torch.ones(2, 6, dtype=torch.int64)
    mask[0, :3] = 0
    ids = IDS.view(2, 6)
    with load(folder, cache_bytes=0) as streamed, torch.no_grad():
        for model_input in ({"input_ids": IDS}, {"input_ids": ids, "attention_mask": mask}):
            ours = streamed.network.generate(**model_input, max_new_tokens=8, do_sample=False)
            assert torch.equal(ours, plain.generate(**model_input, max_new_tokens=8, do_sample=False))


def test_a_table_may_be_loaded_whole(folder: Path) -> None:
    with load_streamed(folder, ram_bytes=1 << 20, rows=None) as streamed, torch.no_grad():
        assert streamed.tables is None
        assert torch.equal(streamed.network(IDS).logits, plain_network(folder)(IDS).logits)


def test_a_module_that_is_called_without_its_pass_gets_nothing(folder: Path) -> None:
    with load(folder) as streamed:
        module = streamed.network.get_submodule("model.layers.2.ple.ple_embedding")
        with pytest.raises(StagedRowsError, match="no rows are staged"):
            module(IDS, None)


@pytest.mark.slow
def test_must_break_rows_of_other_tokens(folder: Path) -> None:
    """The hook's rows are replaced by those of other tokens: the pass raises."""
    with load(folder) as streamed:
        layer = streamed.network.get_submodule("model.layers.2.ple.ple_embedding")

        def restage(module: torch.nn.Module, args: object) -> None:
            layer.ngram_embedding.rows.stage(torch.zeros(1, IDS.shape[1], 4, dtype=torch.int64))

        streamed.network.get_submodule("model.layers.1").register_forward_pre_hook(restage)
        with pytest.raises(StagedRowsError, match="other tokens"):
            streamed.network(IDS)


def edited(folder: Path, target: Path, name: str, change: torch.Tensor | None) -> Path:
    """A copy of the checkpoint with another tensor, or without it."""
    shutil.copytree(folder, target)
    path = target / "model.safetensors"
    tensors = load_file(path)
    (full,) = [one for one in tensors if one.endswith(name)]
    if change is None:
        del tensors[full]
    else:
        tensors[full] = change
    save_file(tensors, path, {"format": "pt"})
    return target


def test_a_hashing_that_is_not_the_configs_is_refused(folder: Path, tmp_path: Path) -> None:
    name = "layers.2.ple.ple_embedding.layer_multipliers"
    with pytest.raises(ModelDamaged, match="rows would belong to other tokens"):
        load(edited(folder, tmp_path / "a", name, torch.tensor([3, 5, 7])))
    with pytest.raises(ModelDamaged, match="lacks it"):
        load(edited(folder, tmp_path / "b", name, None))


def test_a_table_that_lacks_rows_is_refused(folder: Path, tmp_path: Path) -> None:
    name = "layers.2.ple.ple_embedding.ngram_embedding.shard_11.weight"
    with pytest.raises(ModelDamaged, match="rows of it, the network needs"):
        load(edited(folder, tmp_path / "a", name, None))
    with pytest.raises(ModelDamaged, match=r"its rows are 8 of F16"):
        load(edited(folder, tmp_path / "b", name, torch.zeros(3, 8, dtype=torch.float16)))


@pytest.mark.parametrize("kind", ["blocks", "rows", "tensor"])
def test_a_table_of_codes_is_read_with_its_scales(folder: Path, tmp_path: Path, kind: str) -> None:
    coded, plain = tmp_path / "coded", tmp_path / "plain"
    stored = load_file(folder / "model.safetensors")
    codes, numbers = dict(stored), dict(stored)
    for name, weight in stored.items():
        if ".ngram_embedding.shard_" in name:
            n_rows = len(weight)
            shape = {"blocks": (-(-n_rows // 128), 1), "rows": (n_rows, 2), "tensor": ()}[kind]
            scales = 2.0 ** torch.randint(-9, -6, shape) * 1.25
            codes[name], codes[f"{name}_scale_inv"] = (weight * 200).to(torch.float8_e4m3fn), scales.to(torch.bfloat16)
            found = decoded_table(codes[name], scales, sharing_of(name, n_rows, weight.shape[1], shape))
            numbers[name] = found
    for path, tensors in ((coded, codes), (plain, numbers)):
        shutil.copytree(folder, path)
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = json.loads((coded / "config.json").read_text())
    (coded / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIGS["fp8"]}))
    with load_streamed(coded, ram_bytes=1 << 20, rows=RowSettings(parity=True)) as streamed, torch.no_grad():
        assert torch.equal(streamed.network(IDS).logits, plain_network(plain)(IDS).logits)
        assert streamed.tables is not None
        for counts in streamed.tables.counts().values():
            assert counts.n_compared > 0 == counts.n_different


def test_codes_of_another_kind_are_refused(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    config = read_config(folder)
    bare = skeleton(causal_class(config)[0], config, torch.float32)
    names = {name: StoredAs(name, "global_scale" if "shard_3." in name else "") for name in checkpoint.tensors}
    with pytest.raises(UnsupportedModel, match=r"shard_3.weight: a table with a global_scale is not read by row"):
        find_tables(checkpoint, names, bare)
    names = {name: StoredAs(name, "scales" if "shard_3." in name else "") for name in checkpoint.tensors}
    with pytest.raises(ModelDamaged, match="rows of it, the network needs"):
        find_tables(checkpoint, names, bare)


def test_a_checkpoint_that_changes_is_an_error(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    with load(copy) as streamed, torch.no_grad():
        streamed.network(IDS)
        (copy / "model.safetensors").touch()
        with pytest.raises(CheckpointChanged):
            streamed.network(IDS)
