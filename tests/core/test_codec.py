"""Page codecs: exact where they promise it, small errors where they don't, and no tensor from wrong bytes."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv.codec import KV, Lossless, PageShape, make_codec, page_bytes
from livingkv.errors import RecordDamaged
from livingkv.model_rope import Rope
from livingkv.positions import rotate, rotation
from livingkv.settings import CodecName

ROPE = Rope(1.0 / 1e4 ** (torch.arange(0, 16, 2, dtype=torch.float64) / 16), 1.0)
CPU = torch.device("cpu")


def _shape(dtype: torch.dtype = torch.bfloat16) -> PageShape:
    return PageShape(3, 2, 16, dtype)


def _kv(n: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> KV:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, 3, 2, n, 16, generator=generator).to(dtype)
    return KV(keys, values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lossless_is_lossless(dtype: torch.dtype) -> None:
    codec = make_codec("lossless", _shape(dtype), (None,) * 3, ROPE)
    kv = _kv(128, dtype)
    pages = codec.encode(kv, 640)
    back = codec.decode(pages, [640, 704], CPU)
    assert torch.equal(back.keys, kv.keys) and torch.equal(back.values, kv.values)
    assert [len(page) for page in pages] == [page_bytes("lossless", _shape(dtype))] * 2


@given(st.integers(0, 63), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_a_tail_of_any_length_comes_back(n: int, seed: int) -> None:
    kv = _kv(n, seed=seed)
    back = Lossless(_shape()).decode_run(Lossless(_shape()).encode_run(kv), CPU)
    assert torch.equal(back.keys, kv.keys) and torch.equal(back.values, kv.values)


def test_int8_is_within_half_a_step_and_bias_is_free() -> None:
    bias = [torch.randn(2, 16) * 100 for _ in range(3)]
    codec = make_codec("int8", _shape(torch.float32), bias, ROPE)
    first = 999_936
    rotated = rotate(
        torch.stack(bias).unsqueeze(2).expand(-1, -1, 64, -1), rotation(torch.arange(first, first + 64), ROPE)
    )
    small = _kv(64, torch.float32)
    kv = KV(small.keys + rotated, small.values)
    (page,) = codec.encode(kv, first)
    assert len(page) == page_bytes("int8", _shape(torch.float32))
    back = codec.decode([page], [first], CPU)
    key_step = small.keys.abs().amax(2, keepdim=True) / 127 * 1.02
    value_step = small.values.abs().amax(3, keepdim=True) / 127 * 1.02
    assert ((back.keys - kv.keys).abs() <= key_step * 0.5 + 1e-4).all()
    assert ((back.values - kv.values).abs() <= value_step * 0.5 + 1e-6).all()


def test_int8_is_a_pure_function_of_what_it_is_given() -> None:
    """Warm-up or neighbours must not change bytes (kekzl/imp PR 89, VeloxQuant-MLX 162)."""
    codec = make_codec("int8", _shape(), (None,) * 3, ROPE)
    kv = _kv(192)
    together = codec.encode(kv, 64)
    codec.encode(_kv(64, seed=9), 0)
    apart = [codec.encode(KV(kv.keys[:, :, i : i + 64], kv.values[:, :, i : i + 64]), 64 + i)[0] for i in (0, 64, 128)]
    assert together == apart


def test_zeros_and_extremes_survive() -> None:
    codec = make_codec("int8", _shape(), (None,) * 3, ROPE)
    kv = KV(torch.zeros(3, 2, 64, 16).bfloat16(), torch.full((3, 2, 64, 16), 3e38).bfloat16())
    back = codec.decode(codec.encode(kv, 0), [0], CPU)
    assert torch.equal(back.keys, kv.keys)
    assert torch.isfinite(back.values).all()


@pytest.mark.parametrize("name", ["int8", "lossless"])
def test_wrong_bytes_never_become_a_tensor(name: str) -> None:
    codec = make_codec("int8" if name == "int8" else "lossless", _shape(), (None,) * 3, ROPE)
    other = make_codec("lossless" if name == "int8" else "int8", _shape(), (None,) * 3, ROPE)
    (page,) = codec.encode(_kv(64), 0)
    for bad in (b"", page[:10], page[:-1], page + b"\0", b"XXXX" + page[4:], other.encode(_kv(64), 0)[0]):
        with pytest.raises(RecordDamaged):
            codec.decode([bad], [0], CPU)


@pytest.mark.parametrize("name", ["int8", "lossless"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layer_alone_is_bitwise_that_of_the_pages(name: CodecName, dtype: torch.dtype) -> None:
    bias = [torch.randn(2, 16) * 100, None, torch.randn(2, 16)]
    codec = make_codec(name, _shape(dtype), bias, ROPE)
    pages = codec.encode(_kv(192, dtype), 640)
    whole = codec.decode(pages, [640, 704, 768], CPU)
    for layer in range(3):
        parts = [b"".join(bytes(part) for part in codec.layer_bytes(page, layer)) for page in pages]
        rows = torch.stack([torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts])
        one = codec.decode_layer(rows, 640, layer)
        assert torch.equal(one.keys, whole.keys[layer]) and torch.equal(one.values, whole.values[layer])


@pytest.mark.parametrize("name", ["int8", "lossless"])
def test_no_layer_from_another_page(name: CodecName) -> None:
    codec = make_codec(name, _shape(), (None,) * 3, ROPE)
    other = make_codec("int8" if name == "lossless" else "lossless", _shape(), (None,) * 3, ROPE)
    (page,) = codec.encode(_kv(64), 0)
    for wrong in (page[:-1], page[:10], *other.encode(_kv(64), 0)):
        with pytest.raises(RecordDamaged, match="livingkv check"):
            codec.layer_bytes(wrong, 1)


@pytest.mark.parametrize("name", ["int8", "lossless"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_stored_is_known_without_its_bytes(name: CodecName, dtype: torch.dtype) -> None:
    bias = [torch.randn(2, 16) * 100, None, torch.randn(2, 16)]
    codec, kv = make_codec(name, _shape(dtype), bias, ROPE), _kv(192, dtype)
    by = rotation(torch.arange(640, 640 + 192), ROPE)
    back = codec.decode(codec.encode(kv, 640), [640, 704, 768], CPU)
    stored = codec.stored(kv, by)
    assert torch.equal(stored.keys, back.keys) and torch.equal(stored.values, back.values)
    for layer in range(3):
        one = codec.stored(KV(kv.keys[layer : layer + 1], kv.values[layer : layer + 1]), by, layer)
        assert torch.equal(one.keys[0], back.keys[layer]) and torch.equal(one.values[0], back.values[layer])


def test_page_bytes_are_what_they_always_were() -> None:
    """Stores hold such bytes; the digest was taken before pages were made all at once."""
    numbers = (torch.arange(3 * 2 * 128 * 16) * 7919 % 2003 - 1001).float().view(3, 2, 128, 16) / 64
    codec = make_codec("int8", _shape(), [torch.arange(32.0).view(2, 16), None, torch.ones(2, 16)], ROPE)
    pages = codec.encode(KV(numbers.bfloat16(), (numbers * 1.5).bfloat16()), 1920)
    assert (
        hashlib.sha256(b"".join(pages)).hexdigest()
        == "4ecd5cf89bce23c1c22e2c8972413c95b5ecdf1fab387d11666906fe911b8d6f"
    )
