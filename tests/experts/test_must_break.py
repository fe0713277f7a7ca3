"""Controls: what must not go unnoticed, done on purpose. Equality goes red for each, and text becomes less likely."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from livingkv.errors import ModelDamaged, PackError, UnsupportedModel
from livingkv.experts import load_streamed, pack
from livingkv.experts.coded_format import CodedFormat
from livingkv.experts.codings import CODES, CODINGS, SCALES, Coding, Dense, Stored
from livingkv.experts.formats import Format, PlainFormat
from livingkv.experts.loading import FORMATS
from livingkv.experts.plan import plan_of
from tests.experts import test_coded_equal
from tests.experts.coded_moe import write_coded

SIZES: dict[str, Any] = {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 32}
BIG: dict[str, Any] = {"hidden_size": 256, "moe_intermediate_size": 256, "intermediate_size": 256}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8": ("mixtral", BIG),
    "mxfp4": ("gpt_oss", SIZES),
    "modelopt": ("qwen3_moe", SIZES),
    "compressed": ("mixtral", SIZES),
}
Parts = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A Coding that gets its parts changed."""

    right: Coding
    change: Callable[[Parts], Parts]

    @property
    def name(self) -> str:
        return self.right.name

    def dense(self, stored: Mapping[str, Stored]) -> Dense:
        return self.right.dense(stored)

    def values(self, parts: Parts) -> Tensor:
        return self.right.values(self.change(parts))


def swapped_nibbles(parts: Parts) -> Parts:
    codes = parts[CODES].view(torch.uint8)
    return {**parts, CODES: (codes >> 4 | codes << 4).view(parts[CODES].dtype)}


def swapped_scales(parts: Parts) -> Parts:
    """Every block has the scale of its neighbour in the row; where a row has one, of the next row."""
    scales = parts[SCALES]
    rolled = scales.view(torch.uint8) if scales.itemsize == 1 else scales
    return {**parts, SCALES: rolled.roll(1, 1 if scales.shape[1] > 1 else 0).view(scales.dtype)}


def left_out(parts: Parts) -> Parts:
    """Codes of 0 are 0 in every coding."""
    return {**parts, CODES: torch.zeros_like(parts[CODES].view(torch.uint8)).view(parts[CODES].dtype)}


@dataclass(frozen=True, slots=True)
class Exchanged(CodedFormat):
    """Gate and up in each other's place."""

    def matrices(self, tensors: Parts, dtype: torch.dtype) -> dict[str, Tensor]:
        found = CodedFormat.matrices(self, tensors, dtype)
        whole = found["gate_up_proj"]
        if whole.shape[0] == SIZES["hidden_size"] and whole.shape[1] == SIZES["hidden_size"]:  # gpt_oss: interleaved
            found["gate_up_proj"] = whole.view(whole.shape[0], -1, 2).flip(2).flatten(1)
        else:
            found["gate_up_proj"] = torch.cat(whole.chunk(2)[::-1])
        return found


def spoiled(change: Callable[[Parts], Parts]) -> tuple[Format, ...]:
    return (PlainFormat(), *(CodedFormat(Spoiled(coding, change)) for coding in CODINGS))


CONTROLS: dict[str, tuple[Format, ...]] = {
    "swapped nibbles": spoiled(swapped_nibbles),
    "swapped scales": spoiled(swapped_scales),
    "experts left out": spoiled(left_out),
    "gate and up exchanged": (PlainFormat(), *map(Exchanged, CODINGS)),
}


def sampled(network: Any, n_tokens: int = 48) -> Tensor:
    """A text that is likely to that network."""
    torch.manual_seed(3)
    with torch.no_grad():
        found: Tensor = network.generate(
            torch.tensor([[5, 17, 80]]), max_new_tokens=n_tokens, do_sample=True, min_new_tokens=n_tokens
        )
    return found


def logits(network: Any, text: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = network(text).logits[0]
    return found


def perplexity(found: Tensor, text: Tensor) -> float:
    return float(cross_entropy(found[2:-1].float(), text[0, 3:]).exp())


class Intact(NamedTuple):
    """A checkpoint, a text of its own, and the right logits."""

    folder: Path
    text: Tensor
    expected: Tensor


@pytest.fixture(scope="module")
def intact_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Intact]:
    """Of each kind, made once."""
    made: dict[str, Intact] = {}

    def find(kind: str) -> Intact:
        if kind not in made:
            family, sizes = KINDS[kind]
            coded = write_coded(kind, family, tmp_path_factory.mktemp("intact"), **sizes)
            network, _ = test_coded_equal.reference(coded.plain, coded.folder, torch.float32)
            text = sampled(network)
            made[kind] = Intact(coded.folder, text, logits(network, text))
        return made[kind]

    return find


FAST = {("mxfp4", "swapped nibbles"), ("mxfp4", "experts left out")}
CASES = [
    pytest.param(kind, control, marks=() if (kind, control) in FAST else pytest.mark.slow)
    for kind in KINDS
    for control in CONTROLS
    if (kind, control) != ("fp8", "swapped nibbles")  # a code is a whole byte there
]


@pytest.mark.parametrize(("kind", "control"), CASES)
def test_it_goes_red(intact_of: Callable[[str], Intact], kind: str, control: str) -> None:
    folder, text, expected = intact_of(kind)
    with load_streamed(folder, ram_bytes=1 << 24) as streamed:
        assert torch.equal(logits(streamed.network, text), expected)
    with load_streamed(folder, ram_bytes=1 << 24, formats=CONTROLS[control]) as streamed:
        found = logits(streamed.network, text)
    assert not torch.equal(found, expected)
    distance = float((found - expected).abs().mean() / expected.abs().mean())
    right, wrong = perplexity(expected, text), perplexity(found, text)
    print(f"{kind}, {control}: logits off by {distance:.2f}, perplexity {right:.1f} to {wrong:.1f}")  # seen with -rP
    assert distance > 0.1 and wrong > 1.2 * right


def test_a_stale_pack_is_refused_and_would_go_red(tmp_path: Path) -> None:
    """Other weights, same names, shapes, sizes and time: the fingerprint's time of change is all that tells them."""
    folder = write_coded("modelopt", "qwen3_moe", tmp_path, **SIZES).folder
    text = torch.tensor([[5, 17, 80, 3, 44, 9, 62, 31]])
    pack(plan_of(folder, None, torch.device("cpu"), FORMATS).index, tmp_path / "pack")
    weights = folder / "model.safetensors"
    before = weights.stat()
    stored = load_file(weights)
    for name in [name for name in stored if ".experts." in name and name.endswith("proj.weight")]:
        stored[name] = stored[name].flip(0).contiguous()
    save_file(stored, weights, metadata={"format": "pt"})
    assert weights.stat().st_size == before.st_size
    with load_streamed(folder, ram_bytes=1 << 20) as streamed:
        expected = logits(streamed.network, text)
    with pytest.raises(PackError, match="of another checkpoint"):
        load_streamed(folder, ram_bytes=1 << 20, pack=tmp_path / "pack")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))  # the refusal is deceived
    with load_streamed(folder, ram_bytes=1 << 20, pack=tmp_path / "pack") as streamed:
        assert not torch.equal(logits(streamed.network, text), expected)


REFUSED: dict[str, dict[str, Any]] = {
    "quant_method awq": {"quant_method": "awq"},
    "weight_block_size None": {"quant_method": "fp8"},
    r"weight_block_size \[64, 64\]": {"quant_method": "fp8", "weight_block_size": [64, 64]},
    "activation_scheme static": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "static"},
    "quant_algo FP8": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "format pack-quantized": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    "format int-quantized": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"format": "int-quantized"}},
    },
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_quantizations_are_refused_in_one_line(tmp_path: Path, reason: str) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen3_moe", "quantization_config": REFUSED[reason]})
    )
    with pytest.raises(UnsupportedModel, match=f"its weights are quantized: .*{reason}") as raised:
        load_streamed(tmp_path, ram_bytes=1 << 20)
    assert "\n" not in str(raised.value)


def test_codes_without_their_scales_are_refused(tmp_path: Path) -> None:
    folder = write_coded("modelopt", "qwen3_moe", tmp_path, **SIZES).folder
    stored = load_file(folder / "model.safetensors")
    whole = dict(stored)
    cases: list[tuple[Callable[[str], bool], str]] = [
        (
            lambda name: "experts" in name and name.endswith("weight_scale_2"),
            "nvfp4: gate_up_proj: it has codes, scales",
        ),
        (lambda name: name.endswith("1.mlp.experts.3.up_proj.weight_scale"), "expert 3 has no gate_up_proj.1.scales"),
        (lambda name: name.endswith("0.self_attn.q_proj.weight_scale"), "q_proj.weight: it is stored in a way"),
        (lambda name: "layers.0" in name and "experts" in name and "_scale" in name, "down_proj is stored as U8"),
    ]
    for leaves, reason in cases:
        save_file({name: one for name, one in whole.items() if not leaves(name)}, folder / "model.safetensors")
        with pytest.raises((UnsupportedModel, ModelDamaged), match=reason) as raised:
            load_streamed(folder, ram_bytes=1 << 20)
        assert "\n" not in str(raised.value)


def test_fp8_without_scales_is_not_taken_for_numbers(tmp_path: Path) -> None:
    folder = write_coded("fp8", "qwen3_moe", tmp_path, **SIZES).folder
    stored = load_file(folder / "model.safetensors")
    del stored["model.layers.0.self_attn.q_proj.weight_scale_inv"]
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"q_proj.weight: it is stored as F8_E4M3 without scales"):
        load_streamed(folder, ram_bytes=1 << 20)


def test_a_wrong_table_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The gate at load compares on the checkpoint's own bytes, and the answers stay right."""
    folder = write_coded("modelopt", "qwen3_moe", tmp_path, **SIZES).folder
    text = torch.tensor([[5, 17, 80, 3, 44, 9, 62, 31]])
    with load_streamed(folder, ram_bytes=1 << 20) as streamed:
        expected = logits(streamed.network, text)
    assert not caplog.records

    def wrong(coding: Coding) -> Coding:
        return replace(Spoiled(coding, swapped_nibbles))

    monkeypatch.setattr("livingkv.experts.coded_format.with_tables", wrong)
    with load_streamed(folder, ram_bytes=1 << 20) as streamed:
        assert torch.equal(logits(streamed.network, text), expected)
    assert [record.message[:6] for record in caplog.records] == ["nvfp4:"]
    assert "values of the kernel differ from the reference" in caplog.records[0].message
