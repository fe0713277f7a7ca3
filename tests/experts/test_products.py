"""Products without decoding, run by Triton's interpreter: near the reference, else refused and not used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from livingkv.errors import InputError, UnsupportedModel
from livingkv.experts import load_streamed
from livingkv.experts.coded_format import CodedFormat
from livingkv.experts.codings import BlockFp8, Coding, Mxfp4, Nvfp4
from livingkv.experts.kernel_gate import SUM_TOLERANCE, Product, Sample, accept_product
from livingkv.experts.keys import ExpertKey
from livingkv.experts.loading import FORMATS
from livingkv.experts.network import _sample, fitted
from livingkv.experts.plan import plan_of
from tests.experts.coded_moe import write_coded
from tests.experts.test_codings import e4m3, fp8_sample, mxfp4_sample, nvfp4_sample
from tests.experts.test_must_break import KINDS, swapped_nibbles, swapped_scales

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton's interpreter is for machines without a GPU", allow_module_level=True)

from livingkv.experts.products import product_of


def in_rows(sample: Sample) -> Sample:
    """MXFP4 as DeepSeek-V4 keeps it."""
    codes, scales = sample["codes"], sample["scales"]
    return {"codes": codes.flatten(1).view(torch.int8), "scales": scales.view(torch.float8_e8m0fnu)}


def of_powers(sample: Sample) -> Sample:
    return {**sample, "scales": torch.full(sample["scales"].shape, 120, dtype=torch.uint8).view(torch.float8_e8m0fnu)}


CASES: dict[str, tuple[Coding, list[Sample]]] = {
    "fp8": (BlockFp8(), [fp8_sample(64, 256)]),
    "fp8, cut blocks, two pieces": (BlockFp8(), [fp8_sample(40, 300), fp8_sample(136, 300)]),
    "fp8, scales that are powers": (BlockFp8(), [of_powers(fp8_sample(128, 128))]),
    "mxfp4 in blocks": (Mxfp4(), [mxfp4_sample()]),
    "mxfp4 in rows, two pieces": (Mxfp4(), [in_rows(mxfp4_sample(24, 3)), in_rows(mxfp4_sample(40, 3))]),
    "nvfp4 of modelopt": (Nvfp4(), [nvfp4_sample(), nvfp4_sample(out=16)]),
    "nvfp4 of compressed-tensors": (Nvfp4(), [nvfp4_sample("global_divisor", out=20, groups=21)]),
}
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
TYPED = [
    ("mxfp4 in blocks", FP32),
    ("mxfp4 in blocks", BF16),
    ("mxfp4 in rows, two pieces", BF16),
    ("nvfp4 of modelopt", BF16),
    ("nvfp4 of compressed-tensors", FP32),
    ("fp8", FP16),
    ("fp8, cut blocks, two pieces", BF16),
    ("fp8, scales that are powers", FP32),
]


def kernel_of(coding: Coding) -> Product:
    product = product_of(coding, interpreted=True)
    assert product is not None
    return product


@pytest.mark.parametrize(
    ("case", "dtype"), [TYPED[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in TYPED[1:])]
)
def test_products_are_those_of_decoded_matrices(case: str, dtype: torch.dtype) -> None:
    coding, pieces = CASES[case]
    assert accept_product(coding, kernel_of(coding), [pieces], dtype)
    weight = torch.cat([coding.values(piece).to(dtype) for piece in pieces]).float()
    hidden = torch.randn(3, weight.shape[1]).to(dtype)
    found = kernel_of(coding)(hidden, pieces)
    assert found.dtype == dtype
    want = hidden.float() @ weight.t()
    # a bound on rounding, and on the order of sums
    bound = torch.finfo(dtype).eps * want.abs() + SUM_TOLERANCE * (hidden.float().abs() @ weight.abs().t())
    assert ((found.float() - want).abs() <= bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("coding", [BlockFp8(), Mxfp4(), Nvfp4()], ids=lambda coding: coding.name)
def test_every_code_is_multiplied_as_it_is(coding: Coding) -> None:
    """With one hot token each value of a matrix comes out alone."""
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32)
    pieces: Sample = {
        "codes": codes.masked_fill(codes & 127 == 127, 0).view(torch.float8_e4m3fn),
        "scales": torch.ones(1, 1),
    }
    if isinstance(coding, Mxfp4):
        pieces = {"codes": codes, "scales": (torch.arange(16, dtype=torch.uint8) * 17).clamp(max=250).view(8, 2)}
    elif isinstance(coding, Nvfp4):
        pieces = {"codes": codes, "scales": e4m3(8, 4), "global_scale": torch.tensor(0.37)}
    weight = coding.values(pieces)
    into = weight.shape[1]
    for first in range(0, into, 16):
        found = kernel_of(coding)(torch.eye(into)[first : first + 16], [pieces])
        assert torch.equal(found, weight.t()[first : first + 16])


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A Product that gets its parts changed."""

    right: Product
    change: Any
    most_tokens: int = 16

    def __call__(self, hidden: Tensor, pieces: Sequence[Mapping[str, Tensor]]) -> Tensor:
        return self.right(hidden, [self.change(piece) for piece in pieces])


@pytest.mark.parametrize("change", [swapped_nibbles, pytest.param(swapped_scales, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", ["mxfp4 in blocks", pytest.param("nvfp4 of modelopt", marks=pytest.mark.slow)])
def test_the_gate_goes_red(case: str, change: Any) -> None:
    coding, pieces = CASES[case]
    with pytest.raises(UnsupportedModel, match=r"off by .* it is not used"):
        accept_product(coding, Spoiled(kernel_of(coding), change), [pieces], torch.float32)


def test_nothing_to_compare_on_is_no_comparison() -> None:
    with pytest.raises(UnsupportedModel, match="without matrices"):
        accept_product(Mxfp4(), kernel_of(Mxfp4()), [], torch.float32)


def test_other_blocks_have_no_kernel() -> None:
    assert product_of(BlockFp8(block=64)) is None


def test_only_two_ways_of_multiplying(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fused and exact are allowed"):
        load_streamed(tmp_path, ram_bytes=1, products="quick")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mxfp4", "modelopt"])  # transposed with biases; two pieces
def test_an_expert_computes_nearly_the_same(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    family, sizes = KINDS[kind]
    coded = write_coded(kind, family, tmp_path, **sizes)
    plan = plan_of(coded.folder, FP32, torch.device("cpu"), FORMATS)
    with load_streamed(coded.folder, ram_bytes=1 << 26, dtype=FP32) as streamed:
        (form,) = set(fitted(streamed.network, plan))
        assert isinstance(form, CodedFormat) and form.product is None
        module, expert = streamed.network.get_submodule(plan.modules[0].name), _sample(plan, ExpertKey(0, 3))
        product = kernel_of(form.coding)
        assert form.multiplying(module, expert, Spoiled(product, swapped_nibbles), FP32) == form
        assert len(caplog.messages) == 1 and f"decoded for every token: {form.name}" in caplog.text
        quick = form.multiplying(module, expert, product, FP32)
        assert quick.product is product
        hidden = torch.randn(3, sizes["hidden_size"])
        want, found = (each.forward(module, hidden, expert) for each in (form, quick))
        many = torch.randn(17, sizes["hidden_size"])
        assert torch.equal(form.forward(module, many, expert), quick.forward(module, many, expert))
    assert not torch.equal(found, want)  # sums have another order
    assert torch.allclose(found, want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))
