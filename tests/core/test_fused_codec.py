"""Kernels for 8-bit pages, run by Triton's interpreter: every bit is that of the reference, else they are not used."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from livingkv.codec import KV, Int8, PageShape
from livingkv.model_rope import Rope
from livingkv.page_gate import accepted, difference, with_kernels
from livingkv.page_places import Place
from livingkv.positions import Rotation, rotation

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton's interpreter is for machines without a GPU", allow_module_level=True)

from livingkv.fused_codec import FusedInt8
from livingkv.fused_pages import FusedPages

CPU = torch.device("cpu")
FIRST = 640


def rope_of(dim: int) -> Rope:
    return Rope(1.0 / 1e4 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim), 1.0)


def codec_of(dtype: torch.dtype, dim: int, *, biased: bool = True, layers: int = 2, heads: int = 1) -> Int8:
    generator = torch.Generator().manual_seed(1)
    bias = [torch.randn(heads, dim, generator=generator) * 100, *[None] * (layers - 1)]
    return Int8(PageShape(layers, heads, dim, dtype), bias if biased else [None] * layers, rope_of(dim))


def fused_of(codec: Int8, kind: type[FusedPages] = FusedPages) -> FusedInt8:
    return FusedInt8(codec, rope_of(codec.shape.head_dim), kind(codec.shape, interpreted=True), "cpu")


def numbers(codec: Int8, n: int) -> KV:
    layers, heads, dim, dtype = codec.shape
    both = torch.randn(2, layers, heads, n, dim, generator=torch.Generator().manual_seed(2)).to(dtype)
    return KV(both[0], both[1])


def problem_of(codec: Int8, fused: FusedInt8) -> str | None:
    return difference(codec, fused, codec.shape, rope_of(codec.shape.head_dim), CPU)


CASES = [(torch.bfloat16, 16, True), (torch.float16, 16, False), (torch.float32, 24, True), (torch.bfloat16, 128, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "dim", "biased"), CASES)
def test_every_bit_is_that_of_the_reference(dtype: torch.dtype, dim: int, biased: bool) -> None:
    codec = codec_of(dtype, dim, biased=biased)
    assert problem_of(codec, fused_of(codec)) is None


def test_a_page_and_its_numbers_are_those_of_the_reference() -> None:
    codec = codec_of(torch.bfloat16, 16)
    one, two = numbers(codec, 64), numbers(codec, 64)
    assert torch.equal(codec.seal(one, FIRST), fused_of(codec).seal(two, FIRST))
    assert torch.equal(one.keys, two.keys) and torch.equal(one.values, two.values)


def test_a_layer_of_many_pages_is_decoded_alone() -> None:
    codec = codec_of(torch.bfloat16, 16)
    pages = codec.encode(numbers(codec, 128), FIRST)
    parts = [b"".join(bytes(part) for part in codec.layer_bytes(page, 1)) for page in pages]
    rows = torch.stack([torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts])
    want, found = codec.decode_layer(rows, FIRST, 1), fused_of(codec).decode_layer(rows, FIRST, 1)
    assert torch.equal(want.keys, found.keys) and torch.equal(want.values, found.values)


@pytest.mark.slow
def test_programs_that_do_all_heads_of_a_layer_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livingkv.fused_pages._MANY_PROGRAMS", 1)
    codec = codec_of(torch.bfloat16, 16, heads=2)
    assert problem_of(codec, fused_of(codec)) is None


def test_pieces_of_a_view_in_the_middle_of_a_buffer() -> None:
    """A workspace's slots lie between others', which stay as they are."""
    codec, rope = codec_of(torch.float32, 16), rope_of(16)
    pages = codec.encode(numbers(codec, 128), FIRST)
    places = [Place(FIRST, 60, 64, 3, -600), Place(FIRST + 64, 0, 2, 7, -600)]
    into = [KV(torch.full((2, 1, 20, 16), 7.0), torch.full((2, 1, 20, 16), 7.0)) for _ in range(2)]
    codec.decode_into(pages, places, into[0], rope)
    fused_of(codec).decode_into(pages, places, into[1], rope)
    assert torch.equal(into[0].keys, into[1].keys) and torch.equal(into[0].values, into[1].values)
    assert (into[1].keys[:, :, :3] == 7).all() and (into[1].values[:, :, 9:] == 7).all()


class Unmoved(FusedPages):
    """Forgets to move keys."""

    def decode(
        self, rows: Tensor, by: Rotation | None, bias: Tensor | None, places: Sequence[Place], into: KV, rope: Rope
    ) -> None:
        super().decode(rows, by, bias, [place._replace(delta=0) for place in places], into, rope)


class OnePositionOff(FusedPages):
    """Subtracts the bias of the next position."""

    def encode(self, kv: KV, by: Rotation | None, bias: Tensor | None) -> Tensor:
        n = kv.keys.shape[2]
        return super().encode(kv, rotation(torch.arange(1, n + 1), rope_of(kv.keys.shape[3])), bias)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "said"),
    [(OnePositionOff, "bytes of pages differ"), (Unmoved, "numbers differ, moved")],
)
def test_kernels_that_differ_are_refused_with_one_line(
    kind: type[FusedPages], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    codec = codec_of(torch.bfloat16, 16)
    with caplog.at_level(logging.WARNING, "livingkv.codec"):
        assert accepted(codec, fused_of(codec, kind), codec.shape, rope_of(16), CPU) is codec
    assert len(caplog.records) == 1 and said in caplog.text


def test_what_cannot_be_compiled_is_refused_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FusedPages):
        def encode(self, kv: KV, by: Rotation | None, bias: Tensor | None) -> Tensor:
            raise RuntimeError("no C compiler\nat all")

    codec = codec_of(torch.bfloat16, 16)
    assert accepted(codec, fused_of(codec, Broken), codec.shape, rope_of(16), CPU) is codec
    assert caplog.messages == ["8-bit pages are decoded by torch, not by kernels: no C compiler"]


def test_a_cpu_has_the_reference() -> None:
    codec = codec_of(torch.bfloat16, 16)
    assert with_kernels(codec, rope_of(16), CPU) is codec
