"""Loading a model folder: the same network as in memory, in the asked type, silently; bad folders are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from livingkv import model_loading
from livingkv.errors import InputError, ModelDamaged, ModelNotFound, UnsupportedModel
from livingkv.models import DualChunk, load_model
from tests.tiny import FAMILIES, tiny_network, tiny_tokenizer


def model_folder(path: Path, family: str = "qwen2", **changes: Any) -> Path:
    """A model folder as transformers writes it."""
    tiny_network(family, **changes).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_gives_the_same_network(tmp_path: Path, family: str) -> None:
    folder = model_folder(tmp_path / "m", family)
    loaded = load_model(str(folder), weights="fp32", device="cpu")
    network = tiny_network(family)
    ids = torch.tensor([loaded.tokenizer("The thing.")["input_ids"]])
    assert torch.equal(loaded.network(ids).logits, network(ids).logits)
    assert (loaded.name, loaded.dtype, loaded.quantization) == ("m", torch.float32, "none")
    assert not loaded.network.training
    assert not any(parameter.requires_grad for parameter in loaded.network.parameters())
    again = load_model(folder, weights="fp32", device="cpu")
    assert (again.model_digest, again.tokenizer_digest) == (loaded.model_digest, loaded.tokenizer_digest)


def test_bfloat16_is_the_default_and_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[str, int, int]] = []
    folder = model_folder(tmp_path / "m")
    capfd.readouterr()
    loaded = load_model(folder, device="cpu", progress=lambda *step: seen.append(step))
    assert loaded.dtype == torch.bfloat16
    assert loaded.network.model.rotary_emb.inv_freq.dtype == torch.float32
    assert seen == [("load", 0, 1), ("load", 1, 1)]
    assert capfd.readouterr() == ("", "")


def test_stop_ids_are_gathered_from_everywhere(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    loaded = load_model(folder, device="cpu")
    ids = loaded.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert loaded.stop_ids == {5, 7, *ids}


def test_dual_chunk_by_choice(tmp_path: Path) -> None:
    chunk = DualChunk(512, 64, 2048)
    assert load_model(model_folder(tmp_path / "m"), device="cpu", dual_chunk=chunk).dual_chunk == chunk


def test_an_unfit_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", "mistral")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sliding_window": 64}))
    (folder / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(UnsupportedModel, match=r"m \(mistral\) cannot be used: .* sliding window of 64 tokens"):
        load_model(folder)


def test_code_of_a_model_is_never_run(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    own_code = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Net"}}
    (folder / "config.json").write_text(json.dumps({**config, **own_code}))
    (folder / "mine.py").write_text("raise SystemExit('was run')")
    with pytest.raises(UnsupportedModel, match=r"cannot read its config\.json"):
        load_model(folder)


def test_bad_folders_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        load_model(empty)
    folder = model_folder(tmp_path / "m")
    (folder / "config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match=r"cannot read its config\.json"):
        load_model(folder)
    (folder / "config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(UnsupportedModel, match="unheard_of"):
        load_model(folder)


def test_bad_weights_are_named(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(ModelDamaged, match="weights cannot be loaded"):
        load_model(folder)
    name = "model.layers.1.self_attn.k_proj.bias"
    save_file({key: value for key, value in tensors.items() if key != name}, file, metadata={"format": "pt"})
    with pytest.raises(ModelDamaged, match=f"1 tensors are missing.*{name}"):
        load_model(folder)
    save_file({**tensors, name: torch.zeros(7)}, file, metadata={"format": "pt"})
    with pytest.raises(ModelDamaged, match=r"k_proj\.bias|weights cannot be loaded"):
        load_model(folder)
    file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelNotFound, match=r"no \*\.safetensors weights"):
        load_model(folder)


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(ModelNotFound, match="no tokenizer in it"):
        load_model(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int3"}, "weights: got 'int3'; one of bf16, fp32, int8, int4, 8bit, 4bit is allowed"),
        ({"dtype": torch.int8}, r"dtype: got torch\.int8"),
        ({"weights": "fp32", "dtype": torch.bfloat16}, "give one of the two"),
        ({"device": "abacus"}, "device: got 'abacus'; cpu, cuda"),
        ({"device": "cuda:99"}, "CUDA devices; cpu is allowed"),
    ],
)
def test_bad_options_name_the_field(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(tmp_path, **options)


@pytest.mark.parametrize("weights", ["8bit", "4bit"])
def test_packed_weights_need_bitsandbytes(tmp_path: Path, weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loading, "_has_bitsandbytes", lambda: False)
    with pytest.raises(InputError, match=rf"weights: got {weights}; .*pip install bitsandbytes"):
        load_model(model_folder(tmp_path / "m"), weights=weights, device="cpu")


@pytest.mark.parametrize("weights", ["8bit", "4bit"])
def test_packed_weights_through_bitsandbytes(tmp_path: Path, weights: Any, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("bitsandbytes")
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    folder = model_folder(tmp_path / "m", **sizes)
    plain = load_model(folder, device="cpu")
    capfd.readouterr()
    packed = load_model(folder, weights=weights, device="cpu")
    ids = torch.tensor([[1, 2, 3]])
    assert packed.quantization == weights
    assert packed.model_digest == plain.model_digest
    ours, theirs = packed.network(ids).logits.float().flatten(), plain.network(ids).logits.float().flatten()
    assert 0.9 < float(torch.cosine_similarity(ours, theirs, dim=0)) < 1
    assert all(bias is not None for bias in packed.key_bias)
    assert "MatMul8bitLt" not in capfd.readouterr().err


def test_only_the_named_weights_count(tmp_path: Path) -> None:
    """Some repositories hold the weights a second time in another layout (consolidated.safetensors)."""
    folder = model_folder(tmp_path / "m")
    digest = load_model(folder, device="cpu").model_digest
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    assert load_model(folder, device="cpu").model_digest == digest
