"""Kernels compiled for a GPU: those for pages give every bit of the reference, products come near theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from livingkv.codec import Int8, PageShape
from livingkv.experts import load_streamed
from livingkv.experts.coded_format import CodedFormat
from livingkv.experts.codings import BlockFp8, Coding, Mxfp4, Nvfp4
from livingkv.experts.kernel_gate import Sample, accept_product
from livingkv.model_rope import Rope
from livingkv.page_gate import with_kernels
from tests.experts.coded_moe import write_coded
from tests.experts.test_codings import fp8_sample, mxfp4_sample, nvfp4_sample
from tests.experts.test_must_break import KINDS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

CUDA = torch.device("cuda")
PAGES = [
    (torch.bfloat16, 28, 4, 128, True),
    (torch.bfloat16, 24, 2, 64, True),
    (torch.float16, 4, 8, 128, False),
    (torch.float32, 3, 2, 16, True),
    (torch.bfloat16, 3, 1, 80, True),
]


@pytest.mark.parametrize(("dtype", "layers", "heads", "dim", "biased"), PAGES)
def test_kernels_for_pages_pass_their_gate(
    dtype: torch.dtype, layers: int, heads: int, dim: int, biased: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rope = Rope(1e6 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim), 1.0)
    bias = [torch.randn(heads, dim) * 80 if biased else None for _ in range(layers)]
    codec = with_kernels(Int8(PageShape(layers, heads, dim, dtype), bias, rope), rope, CUDA)
    assert caplog.messages == [] and type(codec).__name__ == "FusedInt8"


CASES: dict[str, tuple[Coding, list[Sample]]] = {
    "fp8": (BlockFp8(), [fp8_sample(768, 2048), fp8_sample(768, 2048)]),
    "fp8, cut blocks": (BlockFp8(), [fp8_sample(200, 300)]),
    "mxfp4": (Mxfp4(), [mxfp4_sample(2880, 90)]),
    "nvfp4 of modelopt": (Nvfp4(), [nvfp4_sample(out=768, groups=128), nvfp4_sample(out=768, groups=128)]),
    "nvfp4 of compressed-tensors": (Nvfp4(), [nvfp4_sample("global_divisor", out=2048, groups=48)]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products_pass_their_gate(case: str, dtype: torch.dtype) -> None:
    from livingkv.experts.products import product_of

    coding, pieces = CASES[case]
    product = product_of(coding)
    assert product is not None
    there = [{role: part.to(CUDA) for role, part in piece.items()} for piece in pieces]
    assert accept_product(coding, product, [there], dtype) is product


@pytest.mark.parametrize("kind", KINDS)
def test_a_streamed_network_multiplies_codes_and_answers_nearly_the_same(kind: str, tmp_path: Path) -> None:
    family, sizes = KINDS[kind]
    folder = write_coded(kind, family, tmp_path, **sizes).folder
    text = torch.tensor([[5, 17, 80, 3, 44, 9, 62, 31]], device=CUDA)
    found = {}
    for products in ("exact", "fused"):
        with (
            load_streamed(
                folder,
                ram_bytes=1 << 26,
                device=CUDA,
                dtype=torch.bfloat16,
                products=products,
            ) as streamed,
            torch.no_grad(),
        ):
            forms = [form for form in streamed.stream._formats if isinstance(form, CodedFormat)]
            assert forms and all((form.product is not None) == (products == "fused") for form in forms)
            found[products] = streamed.network(text).logits.float()
    assert torch.allclose(found["fused"], found["exact"], rtol=0.05, atol=0.05 * float(found["exact"].abs().max()))
