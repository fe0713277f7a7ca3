"""Codes and scales to numbers: the references against tables, against other libraries, and against faster ways."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from livingkv.errors import UnsupportedModel
from livingkv.experts.codings import BlockFp8, Coding, Mxfp4, Nvfp4, Stored, e8m0, widened
from livingkv.experts.fp4 import e2m1, unpacked
from livingkv.experts.kernel_gate import Sample, accept_kernel, compared
from livingkv.experts.tables import unpacked_by_table, widened_by_table, with_tables
from tests.experts.coded_moe import E2M1

ALL_BYTES = torch.arange(256, dtype=torch.uint8)
RANDOM = torch.Generator().manual_seed(5)


def bits(values: Tensor) -> Tensor:
    """Floats as integers, so that -0.0 differs from 0.0."""
    return values.view({4: torch.int32, 2: torch.int16}[values.itemsize])


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=RANDOM, dtype=torch.uint8)


def e4m3(*shape: int) -> Tensor:
    """Random E4M3 numbers, none of them NaN."""
    drawn = random_bytes(*shape)
    return drawn.masked_fill(drawn & 127 == 127, 126).view(torch.float8_e4m3fn)


def fp8_sample(out: int = 256, into: int = 384) -> Sample:
    grid = (-(-out // 128), -(-into // 128))
    return {"codes": e4m3(out, into), "scales": torch.rand(grid, generator=RANDOM) * 1e-3}


def mxfp4_sample(out: int = 64, groups: int = 6) -> Sample:
    return {"codes": random_bytes(out, groups, 16), "scales": random_bytes(out, groups) % 40 + 100}


def nvfp4_sample(whole: str = "global_scale", out: int = 64, groups: int = 6) -> Sample:
    number = torch.tensor([3e-4 if whole == "global_scale" else 2917.0])
    return {"codes": random_bytes(out, groups * 8), "scales": e4m3(out, groups), whole: number}


def test_four_bit_codes_are_what_the_format_says() -> None:
    assert torch.equal(bits(e2m1(torch.arange(16))), bits(torch.from_numpy(E2M1)))
    both = torch.from_numpy(np.stack((E2M1[ALL_BYTES.numpy() & 15], E2M1[ALL_BYTES.numpy() >> 4]), -1))
    assert torch.equal(bits(unpacked(ALL_BYTES.unsqueeze(-1))), bits(both))


def test_powers_of_two_are_exact() -> None:
    powers = e8m0(ALL_BYTES)
    assert powers[:-1].tolist() == [2.0 ** (byte - 127) for byte in range(255)] and powers[-1].isnan()
    own = ALL_BYTES.view(torch.float8_e8m0fnu).float()
    assert torch.equal(powers[:-1], own[:-1]) and own[-1].isnan()
    assert torch.equal(powers[:-1], e8m0(ALL_BYTES.view(torch.float8_e8m0fnu))[:-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fp8_is_what_transformers_makes_of_it(dtype: torch.dtype) -> None:
    sample = fp8_sample()
    theirs = Fp8Dequantize(None)._dequantize_one(sample["codes"], sample["scales"], dtype)
    assert torch.equal(bits(BlockFp8().values(sample).to(dtype)), bits(theirs))


def test_cut_blocks_of_fp8_are_128_wide() -> None:
    sample = fp8_sample(200, 300)
    found = BlockFp8().values(sample)
    for row, column in itertools.product((0, 127, 128, 199), (0, 127, 128, 255, 256, 299)):
        scale = sample["scales"][row // 128, column // 128]
        assert found[row, column] == sample["codes"][row, column].float() * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mxfp4_is_what_transformers_makes_of_it(dtype: torch.dtype) -> None:
    scales = torch.arange(255, dtype=torch.uint8).repeat_interleave(16).view(-1, 1)  # all but NaN
    codes = ALL_BYTES.view(16, 1, 16).repeat(255, 1, 1)
    theirs = convert_moe_packed_tensors(codes[None], scales[None], dtype=dtype)[0].t()
    ours = Mxfp4().values({"codes": codes, "scales": scales}).to(dtype)
    assert torch.equal(bits(ours), bits(theirs.contiguous()))


def test_mxfp4_in_rows_is_what_transformers_makes_of_it() -> None:
    codes, scales = random_bytes(64, 96).view(torch.int8), (random_bytes(64, 6) % 250).view(torch.float8_e8m0fnu)
    theirs = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.bfloat16)
    ours = Mxfp4().values({"codes": codes, "scales": scales}).to(torch.bfloat16)
    assert torch.equal(bits(ours), bits(theirs))


def test_a_scale_that_is_no_number_makes_none() -> None:
    codes, scales = random_bytes(2, 1, 16), torch.tensor([[255], [127]], dtype=torch.uint8)
    found = Mxfp4().values({"codes": codes, "scales": scales})
    assert found[0].isnan().all() and found[1].isfinite().all()


def test_nvfp4_is_what_compressed_tensors_makes_of_it() -> None:
    nvfp4 = pytest.importorskip("compressed_tensors.compressors.nvfp4.base")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    arguments = quantization.QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True
    )
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=arguments)
    sample = nvfp4_sample("global_divisor")
    state = {
        "weight_packed": sample["codes"],
        "weight_scale": sample["scales"],
        "weight_global_scale": sample["global_divisor"],
    }
    theirs = nvfp4.NVFP4PackedCompressor.decompress(state, scheme)["weight"]
    assert torch.equal(bits(Nvfp4().values(sample).to(theirs.dtype)), bits(theirs))


def test_nvfp4_of_modelopt_multiplies() -> None:
    sample = nvfp4_sample("global_scale")
    found = Nvfp4().values(sample).numpy()
    codes, scales = sample["codes"].numpy(), sample["scales"].float().numpy()
    for row, column in itertools.product((0, 40), range(0, 96, 5)):
        code = codes[row, column // 2] >> 4 * (column % 2) & 15
        assert found[row, column] == E2M1[code] * np.float32(scales[row, column // 16] * np.float32(3e-4))


CODINGS: dict[str, tuple[Coding, Sample]] = {
    "fp8": (BlockFp8(), fp8_sample()),
    "mxfp4": (Mxfp4(), mxfp4_sample()),
    "nvfp4": (Nvfp4(), nvfp4_sample()),
}
TYPES = {
    torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
    torch.float32: "F32",
}


@pytest.mark.parametrize("kind", CODINGS)
def test_shapes_and_types_that_do_not_fit_are_told(kind: str) -> None:
    coding, sample = CODINGS[kind]
    stored = {role: Stored(TYPES[part.dtype], tuple(part.shape)) for role, part in sample.items()}
    assert coding.dense(stored) == (tuple(coding.values(sample).shape), None)
    for role in stored:
        wrong = coding.dense({name: one for name, one in stored.items() if name != role})
        assert wrong.problem is not None and wrong.problem.startswith("it has ")
        for changed in (Stored("I64", stored[role].shape), Stored(stored[role].dtype, (3, 5))):
            assert coding.dense(stored | {role: changed}).problem is not None


@pytest.mark.parametrize("kind", CODINGS)
def test_tables_pass_the_gate(kind: str) -> None:
    coding, sample = CODINGS[kind]
    fast = with_tables(coding)
    assert fast is not None and fast != coding
    n_values = coding.values(sample).numel()
    assert compared(coding, fast.values, [sample]) == (n_values, 0, 0.0)
    accepted = accept_kernel(coding, fast.values, [sample])
    assert accepted.name == coding.name and torch.equal(accepted.values(sample), coding.values(sample))
    assert with_tables(accepted) is None


def test_tables_hold_every_byte() -> None:
    codes = ALL_BYTES.view(4, 64)
    assert torch.equal(bits(unpacked_by_table(codes)), bits(unpacked(codes)))
    numbers = codes.view(torch.float8_e4m3fn)
    assert torch.equal(bits(widened_by_table(numbers)), bits(widened(numbers)))


def test_the_gate_refuses_what_differs_and_says_by_how_much() -> None:
    coding, sample = Nvfp4(), nvfp4_sample()

    def swapped(parts: Mapping[str, Tensor]) -> Tensor:
        codes = parts["codes"]
        return coding.values({**parts, "codes": codes >> 4 | codes << 4})

    def rounded(parts: Mapping[str, Tensor]) -> Tensor:
        return coding.values(parts).bfloat16().float()

    def other_type(parts: Mapping[str, Tensor]) -> Tensor:
        return coding.values(parts).double()

    with pytest.raises(UnsupportedModel, match=r"nvfp4: \d+ of 6144 values of the kernel differ .* 2 of the value"):
        accept_kernel(coding, swapped, [sample])
    with pytest.raises(UnsupportedModel, match=r"by 0.00\d+ of the value at most, 0 is allowed"):
        accept_kernel(coding, rounded, [sample])
    with pytest.raises(UnsupportedModel, match=r"6144 of 6144 values .* by inf"):
        accept_kernel(coding, other_type, [sample], tolerance=0.1)
    with pytest.raises(UnsupportedModel, match="without samples"):
        accept_kernel(coding, coding.values, [])
    assert accept_kernel(coding, rounded, [sample], tolerance=0.01).name == "nvfp4"
    lost = {**sample, "scales": sample["scales"].clone()}
    lost["scales"].view(torch.uint8)[3, 3] = 127  # NaN
    assert compared(coding, coding.values, [lost]).n_different == 0
