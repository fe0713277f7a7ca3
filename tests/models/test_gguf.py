"""A GGUF file becomes a model folder: the same logits, tokens and rotary frequencies, or an error that says why not."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from livingkv import gguf_reading
from livingkv.errors import ModelDamaged, ModelError, ModelNotFound, UnsupportedModel
from livingkv.gguf_conversion import convert_gguf
from livingkv.model_loading import quiet
from livingkv.models import load_model
from tests.models.gguf_files import llama3_factors, write_gguf
from tests.tiny import tiny_tokenizer

pytestmark = pytest.mark.slow  # seconds in all: other processes, many stores

SHA256 = "ab" * 32


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def converted(gguf: Path) -> Path:
    """The model folder made of the file in this process."""
    target = gguf.with_suffix("")
    target.mkdir()
    with quiet():
        gguf_reading.read_gguf(gguf, target, SHA256)
    return target


def logits(network: Any, ids: list[int]) -> torch.Tensor:
    """Logits of one sequence, fp32."""
    with torch.no_grad():
        return network(torch.tensor([ids])).logits.float()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("family", "tie"), [("qwen2", False), ("qwen2", True), ("llama", False), ("llama", True), ("qwen3", False)]
)
def test_logits_and_tokens_survive(tmp_path: Path, family: str, tie: bool) -> None:
    fields = {"qwen3.attention.key_length": 16, "qwen3.attention.value_length": 16} if family == "qwen3" else {}
    network = write_gguf(tmp_path / "m.gguf", family, tie=tie, fields=fields)
    folder = converted(tmp_path / "m.gguf")
    loaded = load_model(folder, weights="fp32", device="cpu")
    tokenizer = tiny_tokenizer()
    text = "the thing\n\tand 日本語 👩‍👩‍👧 is <|im_end|>"
    ids = tokenizer(text)["input_ids"]
    assert loaded.tokenizer(text)["input_ids"] == ids
    assert loaded.tokenizer.chat_template == tokenizer.chat_template
    assert loaded.stop_ids == {tokenizer.eos_token_id, tokenizer.bos_token_id}
    for parameter in network.parameters():
        parameter.data = parameter.data.bfloat16().float()
    torch.testing.assert_close(logits(loaded.network, ids), logits(network, ids))
    assert loaded.network.config.tie_word_embeddings == tie
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata()["source_sha256"] == SHA256
        assert ("lm_head.weight" in file.keys()) != tie  # noqa: SIM118


def test_packed_tensors_are_dequantized(tmp_path: Path) -> None:
    network = write_gguf(tmp_path / "m.gguf", q8=True)
    loaded = load_model(converted(tmp_path / "m.gguf"), weights="fp32", device="cpu")
    ours = loaded.network.model.layers[0].mlp.up_proj.weight
    theirs = network.model.layers[0].mlp.up_proj.weight
    assert 0 < (ours - theirs).abs().max() < 0.01


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 512},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        ),
        ({"rope.scaling.type": "none"}, {"rope_type": "default"}),
    ],
)
def test_scaled_frequencies_are_kept(tmp_path: Path, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    write_gguf(tmp_path / "m.gguf", fields={f"qwen2.{key}": value for key, value in fields.items()})
    folder = converted(tmp_path / "m.gguf")
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    assert rope == {"rope_theta": 10000.0, **expected}


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_frequencies_are_recognised(tmp_path: Path, factor: float) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", tensors={"rope_freqs.weight": llama3_factors(factor)})
    loaded = load_model(converted(tmp_path / "m.gguf"), device="cpu")
    plain = 1.0 / 10000.0 ** (torch.arange(8, dtype=torch.float) / 8)
    torch.testing.assert_close(loaded.rope.inverse_frequencies.float(), plain / llama3_factors(factor))
    assert f"factor={factor}" in loaded.rope_text


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tensors": {"rope_freqs.weight": torch.full((8,), 3.0)}}, UnsupportedModel, "rope_freqs"),
        ({"tensors": {"rope_factors_long.weight": torch.ones(8)}}, UnsupportedModel, "length of the text"),
        ({"fields": {"qwen2.rope.scaling.type": "longrope"}}, UnsupportedModel, "'longrope'"),
        ({"fields": {"split.count": 3}}, UnsupportedModel, "one of 3 files"),
        ({"architecture": "clip"}, UnsupportedModel, "transformers cannot read this GGUF file"),
        ({"leave_out": "blk.1.attn_k.weight"}, ModelDamaged, r"k_proj\.weight"),
        ({"leave_out": "output_norm.weight"}, ModelDamaged, r"norm\.weight"),
    ],
)
def test_what_cannot_be_served_is_refused(
    tmp_path: Path, options: dict[str, Any], error: type[ModelError], message: str
) -> None:
    write_gguf(tmp_path / "m.gguf", **options)
    with pytest.raises(error, match=message):
        converted(tmp_path / "m.gguf")


def test_values_that_are_not_numbers_are_damage(tmp_path: Path) -> None:
    tensors = {"output.weight": torch.full((304, 64), torch.nan)}
    write_gguf(tmp_path / "m.gguf", leave_out="output.weight", tensors=tensors)
    with pytest.raises(ModelDamaged, match="not numbers"):
        converted(tmp_path / "m.gguf")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_cut_off_file_is_damage(tmp_path: Path, kept: float) -> None:
    write_gguf(tmp_path / "m.gguf")
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ModelDamaged, match="damaged or cut off"):
        converted(tmp_path / "m.gguf")


def test_a_full_disk_is_seen_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "m.gguf")
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: free)
    with pytest.raises(ModelNotFound, match=r"no space left in .*MB are needed"):
        converted(tmp_path / "m.gguf")


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(ModelDamaged, match=r"m\.gguf: not a GGUF file"):
        load_model(tmp_path / "m.gguf")
    (tmp_path / "m.txt").write_text("text")
    with pytest.raises(ModelNotFound, match=r"must be a \.gguf file"):
        load_model(tmp_path / "m.txt")


@pytest.mark.slow
def test_a_process_converts_once_and_later_loads_find_it(tmp_path: Path, own_cache: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    seen: list[tuple[str, int, int]] = []
    loaded = load_model(tmp_path / "tiny.gguf", device="cpu", progress=lambda *step: seen.append(step))
    assert loaded.name == "tiny"
    assert seen == [*(("convert", done, 5) for done in range(6)), ("load", 0, 1), ("load", 1, 1)]
    folders = list((own_cache / "converted").iterdir())
    assert len(folders) == 1
    (tmp_path / "copy").mkdir()
    (tmp_path / "tiny.gguf").rename(tmp_path / "copy/tiny.gguf")
    seen.clear()
    again = load_model(tmp_path / "copy", device="cpu", progress=lambda *step: seen.append(step))
    assert seen == [("load", 0, 1), ("load", 1, 1)]
    assert again.model_digest == loaded.model_digest


@pytest.mark.slow
def test_a_refusal_in_the_process_is_the_same_error_and_leaves_nothing(tmp_path: Path, own_cache: Path) -> None:
    write_gguf(tmp_path / "m.gguf", fields={"split.count": 3})
    (own_cache / "converted" / f"m-{SHA256[:16]}-v1.making-1").mkdir(parents=True)
    with pytest.raises(UnsupportedModel, match="one of 3 files"):
        convert_gguf(tmp_path / "m.gguf", SHA256, own_cache)
    assert list((own_cache / "converted").iterdir()) == []


def test_a_crash_of_the_process_is_told_with_its_last_words(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "m.gguf")
    (tmp_path / "python").write_text("#!/bin/sh\necho 'RuntimeError: it burst' >&2\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ModelDamaged, match=r"could not be converted .*it burst"):
        convert_gguf(tmp_path / "m.gguf", SHA256, own_cache)
    (tmp_path / "python").write_text("#!/bin/sh\nkill -9 $$\n")
    with pytest.raises(ModelNotFound, match="killed by signal 9; is there enough memory"):
        convert_gguf(tmp_path / "m.gguf", SHA256, own_cache)
    assert list((own_cache / "converted").iterdir()) == []
