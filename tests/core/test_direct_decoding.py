"""8-bit pages decoded straight into their slots: every bit as in the plain way, and nothing beside them changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv.codec import KV, Int8, PageShape
from livingkv.errors import RecordDamaged
from livingkv.model_rope import Rope
from livingkv.page_places import Place, put_decoded

DIM, SLOTS = 16, 400
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def _rope(rotary_dim: int) -> Rope:
    return Rope(1.0 / 1e4 ** (torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim), 1.0)


def _codec(dtype: torch.dtype, rotary_dim: int, *, biased: bool) -> Int8:
    generator = torch.Generator().manual_seed(1)
    bias = [torch.randn(2, DIM, generator=generator) * 100, None, torch.randn(2, DIM, generator=generator)]
    return Int8(PageShape(3, 2, DIM, dtype), bias if biased else [None] * 3, _rope(rotary_dim))


def _slots(dtype: torch.dtype) -> KV:
    return KV(*(torch.full((3, 2, SLOTS, DIM), 7.0, dtype=dtype) for _ in range(2)))


@st.composite
def _places(draw: st.DrawFn) -> list[Place]:
    places, slot = [], draw(st.integers(0, 9))
    for _ in range(draw(st.integers(1, 5))):
        lo = draw(st.integers(0, 63))
        hi = draw(st.integers(lo + 1, 64))
        first = 64 * draw(st.integers(0, 20_000))
        places.append(Place(first, lo, hi, slot, draw(st.sampled_from([0, 0, 5, -first]))))
        slot += hi - lo + draw(st.integers(0, 2))
    return places


@given(_places(), st.sampled_from(DTYPES), st.sampled_from([DIM, 10]), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_bit_is_that_of_the_plain_way(
    places: list[Place], dtype: torch.dtype, rotary_dim: int, biased: bool, at_odd_addresses: bool
) -> None:
    codec, rope = _codec(dtype, rotary_dim, biased=biased), _rope(rotary_dim)
    both = torch.randn(2, 3, 2, 64, DIM, generator=torch.Generator().manual_seed(len(places))).to(dtype) * 30
    pages = [codec.encode(KV(both[0], both[1]), place.first_token)[0] for place in places]
    found, wanted = _slots(dtype), _slots(dtype)
    if at_odd_addresses:
        codec.decode_into((memoryview(bytearray(b"?" + page))[1:] for page in pages), places, found, rope)
    else:
        codec.decode_into(pages, places, found, rope)
    put_decoded(codec.decode, pages, places, wanted, rope)
    assert torch.equal(found.keys, wanted.keys) and torch.equal(found.values, wanted.values)


def test_a_page_of_another_shape_is_refused() -> None:
    codec, rope = _codec(torch.bfloat16, DIM, biased=True), _rope(DIM)
    with pytest.raises(RecordDamaged, match="shape"):
        codec.decode_into([b"?" * 900], [Place(0, 0, 64, 0)], _slots(torch.bfloat16), rope)
