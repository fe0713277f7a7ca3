"""The fast attention against the plain one, over random partitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv.attention import Partition, attend, attend_in_turn, attend_reference


def _partitions(sizes: list[int], tokens: int, dtype: torch.dtype, seed: int, batch: int = 1) -> list[Partition]:
    generator = torch.Generator().manual_seed(seed)

    def make(heads: int, n: int) -> torch.Tensor:
        return torch.randn(batch, heads, n, 16, generator=generator).to(dtype)

    parts = [Partition(make(4, tokens), make(2, n), make(2, n)) for n in sizes]
    own = Partition(make(4, tokens), make(2, tokens), make(2, tokens), causal=True)
    return [*parts, own]


@given(st.lists(st.integers(0, 200), max_size=4), st.integers(1, 40), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_merged_partitions_equal_one_softmax(sizes: list[int], tokens: int, seed: int) -> None:
    parts = _partitions(sizes, tokens, torch.float32, seed)
    assert torch.allclose(attend(parts, 0.25), attend_reference(parts, 0.25), atol=2e-6)


@given(st.lists(st.integers(0, 200), max_size=9), st.integers(1, 40), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_partitions_merged_in_turn_equal_one_softmax(sizes: list[int], tokens: int, seed: int) -> None:
    parts = _partitions(sizes, tokens, torch.float32, seed)
    assert torch.allclose(attend_in_turn(iter(parts), 0.25), attend_reference(parts, 0.25), atol=2e-6)


@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_masked_keys_are_as_if_absent(n_keys: int, hidden: int, seed: int) -> None:
    plain = _partitions([n_keys], 5, torch.float32, seed)
    part = plain[0]
    noise = torch.full((1, 2, hidden, 16), 50.0)
    mask = torch.tensor([[False] * hidden + [True] * n_keys])
    keys, values = torch.cat((noise, part.keys), 2), torch.cat((noise, part.values), 2)
    padded = [Partition(part.queries, keys, values, key_mask=mask), plain[1]]
    assert torch.allclose(attend(padded, 0.25), attend(plain, 0.25), atol=2e-6)


def test_bf16_stays_near_fp32() -> None:
    parts = _partitions([300, 7], 33, torch.bfloat16, 3)
    assert torch.allclose(attend(parts, 0.25).float(), attend_reference(parts, 0.25).float(), atol=0.02)


@given(
    st.integers(1, 70),
    st.integers(0, 300),
    st.lists(st.integers(1, 200), max_size=2),
    st.sampled_from([1, 3]),
    st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_few_queries_over_many_keys_equal_one_softmax(
    tokens: int, before: int, others: list[int], batch: int, seed: int
) -> None:
    *parts, own = _partitions([before, *others], tokens, torch.bfloat16, seed, batch)
    keys, values = (torch.cat(both, 2) for both in ((parts[0].keys, own.keys), (parts[0].values, own.values)))
    joined = [Partition(own.queries, keys, values, causal=True), *parts[1:]]
    found, wanted = attend(joined, 0.25), attend_reference(joined, 0.25)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), wanted.float(), atol=0.02)


def test_large_scores_of_few_queries_are_not_rounded() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(1, 2, n, 16, generator=generator).bfloat16() * 16 for n in (4, 400))
    parts = [Partition(queries, keys, torch.randn(1, 2, 400, 16, generator=generator).bfloat16(), causal=True)]
    assert attend_reference(parts, 1.0).float().abs().max() > 0.5
    assert torch.allclose(attend(parts, 1.0).float(), attend_reference(parts, 1.0).float(), atol=0.02)


def test_nothing_to_attend_is_a_bug() -> None:
    empty = torch.empty(1, 2, 0, 16)
    with pytest.raises(AssertionError, match="nothing"):
        attend([Partition(torch.randn(1, 4, 1, 16), empty, empty)], 1.0)
