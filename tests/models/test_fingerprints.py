"""Digests: the same for the same weights and tokenizer, another for any change, and cheap the second time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from livingkv import fingerprints
from livingkv.errors import ModelDamaged
from livingkv.fingerprints import file_sha256, network_digest, tokenizer_digest, weight_files, weights_digest
from tests.tiny import tiny_network, tiny_tokenizer


def saved(folder: Path, **options: int) -> Path:
    """A folder with the weights of a tiny network."""
    tiny_network("qwen2").save_pretrained(folder, **options)
    return folder


def test_file_headers_and_sharding_do_not_count(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole")
    digest = weights_digest(whole, tmp_path)
    shards = saved(tmp_path / "shards", max_shard_size=60_000)
    assert len(weight_files(shards)) > 1
    assert weights_digest(shards, tmp_path) == digest
    tensors = load_file(whole / "model.safetensors")
    save_file(dict(reversed(tensors.items())), whole / "model.safetensors", metadata={"made": "anew"})
    assert weights_digest(whole, tmp_path) == digest


def test_any_bit_name_shape_or_type_counts(tmp_path: Path) -> None:
    digests = set()
    tensors = {"a": torch.arange(6, dtype=torch.int16), "b": torch.ones(2, 3)}
    flipped = {**tensors, "a": tensors["a"].clone().index_fill_(0, torch.tensor([5]), 4)}
    renamed = {"a": tensors["a"], "c": tensors["b"]}
    shaped = {**tensors, "b": torch.ones(3, 2)}
    typed = {**tensors, "a": tensors["a"].view(torch.bfloat16)}
    for number, variant in enumerate((tensors, flipped, renamed, shaped, typed)):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_file(variant, folder / "model.safetensors")
        digests.add(weights_digest(folder, tmp_path))
    assert len(digests) == 5


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "m")
    cache = tmp_path / "cache"
    digest = weights_digest(folder, cache)
    file = folder / "model.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(fingerprints, "_tensors_digest", lambda tensors: pytest.fail("computed again"))
        assert weights_digest(folder, cache) == digest
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    before = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert weights_digest(folder, cache) != digest


def test_an_unwritable_cache_costs_time_only(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    occupied = tmp_path / "file"
    occupied.write_text("not a folder")
    assert weights_digest(folder, occupied) == weights_digest(folder, tmp_path)
    assert len(file_sha256(folder / "config.json", occupied)) == 64


@pytest.mark.parametrize("damage", ["cut", "header", "empty"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    file = saved(tmp_path / "m") / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes({"cut": content[:-100], "header": b"\x20" + content[1:], "empty": b""}[damage])
    with pytest.raises(ModelDamaged, match=r"model\.safetensors.*fetch the model again"):
        weights_digest(file.parent, tmp_path)


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    for broken in ("{", "{}", '{"weight_map": 3}', "[]"):
        (tmp_path / "model.safetensors.index.json").write_text(broken)
        with pytest.raises(ModelDamaged, match=r"index\.json: cannot be read"):
            weight_files(tmp_path)


def test_networks_in_memory() -> None:
    digest = network_digest(tiny_network("llama"))
    assert digest == network_digest(tiny_network("llama"))
    changed = tiny_network("llama")
    changed.model.layers[1].mlp.up_proj.weight[0, 0] += 1
    assert len({digest, network_digest(changed), network_digest(tiny_network("llama", dtype=torch.bfloat16))}) == 3


def test_the_tokenizer_digest_sees_ids_not_templates(tmp_path: Path) -> None:
    digest = tokenizer_digest(tiny_tokenizer())
    templated = tiny_tokenizer()
    templated.chat_template = "{{ messages }}"
    assert tokenizer_digest(templated) == digest
    extended = tiny_tokenizer()
    extended.add_tokens([AddedToken("<extra>", special=True)])
    merged = tiny_tokenizer()
    state = json.loads(merged.backend_tokenizer.to_str())
    state["model"]["merges"].reverse()
    merged = type(merged)(tokenizer_object=merged.backend_tokenizer.from_str(json.dumps(state)))
    split = tiny_tokenizer()
    split.backend_tokenizer.pre_tokenizer = None
    assert len({digest, *map(tokenizer_digest, (extended, merged, split))}) == 4


def test_the_tokenizer_digest_of_a_folder_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "m")
    digest = tokenizer_digest(tokenizer, tmp_path / "m", tmp_path / "cache")
    assert digest == tokenizer_digest(tokenizer)
    monkeypatch.setattr(fingerprints, "_tokenizer_digest", lambda tokenizer: pytest.fail("computed again"))
    assert tokenizer_digest(tokenizer, tmp_path / "m", tmp_path / "cache") == digest


@pytest.mark.parametrize("name", [7, None, "", "../other.safetensors", "/etc/model.safetensors", ["a"]])
def test_an_index_names_files_of_its_folder(tmp_path: Path, name: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelDamaged, match=r"index.json: .*fetch the model again"):
        weight_files(tmp_path)
