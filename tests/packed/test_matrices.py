"""Codes of 8 and 4 bits, and the kernels against what the codes mean."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from livingkv.packed.fitting import coarse_int4, found_int4, int4_of, int8_of
from livingkv.packed.head import NEAR_NATS, LikeliestAgain
from livingkv.packed.matrices import GROUP, Bits, Int4Codes, Int4Matrix, Int8Matrix, PlainMatrix, fits, kernel_refusal


@pytest.fixture
def weight() -> Tensor:
    return torch.randn(96, 128, generator=torch.Generator().manual_seed(3)).bfloat16() * 0.05


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def test_codes_of_eight_bits_are_the_nearest(weight: Tensor) -> None:
    weight[5] = 0
    coded = int8_of(weight)
    assert coded.codes.dtype == torch.int8 and int(coded.codes.abs().max()) == 127
    half_steps = coded.scales.float()[:, None] * 0.5
    assert bool(((coded.values() - weight.float()).abs() <= half_steps * 1.02 + 1e-9).all())
    assert bool((coded.values()[5] == 0).all())


def test_a_fitted_range_is_better_than_the_whole_one(weight: Tensor) -> None:
    coded = int4_of(weight)
    assert int(coded.codes.max()) <= 15
    groups = weight.float().view(weight.shape[0], -1, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / 15
    plain = (((groups - low) / step).round() * step + low).flatten(1)
    assert relative(coded.values(), weight) < 0.97 * relative(plain, weight)


@pytest.mark.parametrize("largest", [15, 13])
def test_codes_that_were_there_before_are_found(weight: Tensor, largest: int) -> None:
    """Groups as GGUF's Q4_K makes them, also without the largest code."""
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, largest + 1, (32, 64), generator=generator, dtype=torch.uint8)
    codes[:, ::GROUP], codes[:, 1::GROUP] = 0, largest
    scales = (torch.rand(32, 2, generator=generator) * 0.01 + 0.001).bfloat16()
    made = Int4Codes(codes, scales, (scales * 3).bfloat16())
    found = found_int4(made.values().bfloat16())
    assert found is not None and relative(found.values(), made.values()) < 0.005
    assert found_int4(weight) is None
    other = torch.cat([made.values().bfloat16(), weight[:, :64]])  # not all of it, though its first rows are
    assert found_int4(other) is None


def test_a_group_of_one_value_stays_what_it_is(weight: Tensor) -> None:
    weight[:, :GROUP], weight[0] = 0.25, 0
    values = int4_of(weight).values()
    assert torch.allclose(values[1:, :GROUP], torch.tensor(0.25), rtol=0.01)
    assert bool((values[0].abs() < 1e-9).all())


@pytest.mark.parametrize("n_rows", [1, 2, 5, 8])
@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_kernels_compute_what_the_codes_mean(weight: Tensor, bits: Bits, n_rows: int) -> None:
    if kernel_refusal(bits):
        pytest.skip("no such kernel here")
    coded = int8_of(weight) if bits == "int8" else int4_of(weight)
    matrix = coded if isinstance(coded, Int8Matrix) else coded.matrix()
    x = torch.randn(n_rows, 128, generator=torch.Generator().manual_seed(4)).bfloat16()
    assert relative(matrix.product(x), x.float() @ coded.values().t()) < 0.01


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_a_kernel_that_is_missing_or_wrong_is_refused(bits: Bits, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Int8Matrix if bits == "int8" else Int4Matrix

    def missing(self: object, x: Tensor) -> Tensor:
        raise AttributeError("'_OpNamespace' 'aten' object has no attribute '_weight_pack_mm'")

    monkeypatch.setattr(kind, "product", missing)
    assert "no attribute" in str(kernel_refusal(bits))
    monkeypatch.setattr(kind, "product", lambda self, x: x.new_ones(x.shape[0], 128))
    assert "not what it should be" in str(kernel_refusal(bits))


def test_odd_shapes_stay_as_they_are() -> None:
    assert fits(torch.empty(304, 64)) and not fits(torch.empty(301, 64)) and not fits(torch.empty(304, 48))
    weight = torch.randn(3, 5).bfloat16()
    assert torch.equal(PlainMatrix(weight).product(weight), weight @ weight.t())


def test_the_likeliest_words_are_computed_again(weight: Tensor) -> None:
    coarse = coarse_int4(weight)
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(5)).bfloat16() * 20
    own, rough = (x.float() @ values.t() for values in (weight.float(), coarse.values()))
    if kernel_refusal("int4"):
        pytest.skip("no such kernel here")
    found = LikeliestAgain(coarse.matrix(), weight).product(x).float()
    near = rough >= rough.amax(-1, keepdim=True) - NEAR_NATS * 0.9
    assert 3 < int(near.sum()) < near.numel()
    assert relative(found[near], own[near]) < 0.004 < relative(rough[near], own[near])
    far = rough < rough.amax(-1, keepdim=True) - NEAR_NATS * 1.1
    assert relative(found[far], rough[far]) < 0.01
