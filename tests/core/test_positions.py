"""Rotations compose, whatever the positions: the property that lets a stored key be placed anywhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv.model_rope import DualChunk, Rope
from livingkv.positions import period, query_positions, rotate, rotation, shift, temperature

ROPE = Rope(1.0 / 1e6 ** (torch.arange(0, 64, 2, dtype=torch.float64) / 64), 1.0)
POSITIONS = st.integers(0, 1_000_000)


def _at(x: torch.Tensor, position: int) -> torch.Tensor:
    return rotate(x, rotation(torch.tensor([position]), ROPE))


@given(POSITIONS, POSITIONS, st.integers(0, 2**31))
@settings(max_examples=200, deadline=None)
def test_rerotation_composes(stored: int, placed: int, seed: int) -> None:
    x = torch.randn(2, 1, 64, generator=torch.Generator().manual_seed(seed))
    moved = shift(_at(x, stored), placed - stored, ROPE)
    assert torch.allclose(moved, _at(x, placed), atol=2e-6, rtol=0)


MOVES = st.lists(st.tuples(st.sampled_from(["insert", "delete", "move"]), st.integers(0, 30), POSITIONS), max_size=30)


@pytest.mark.slow
@given(MOVES)
@settings(max_examples=60, deadline=None)
def test_keys_that_were_moved_many_times_are_as_if_placed_once(moves: list[tuple[str, int, int]]) -> None:
    """Moves add up: a key that is moved on is neither moved twice nor left behind (llama.cpp 3825)."""
    generator = torch.Generator().manual_seed(len(moves))
    keys: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # raw, rotated, position
    for what, index, position in moves:
        if what == "insert" or not keys:
            raw = torch.randn(2, 1, 64, generator=generator)
            keys.insert(index % (len(keys) + 1), (raw, _at(raw, position), position))
        elif what == "delete":
            del keys[index % len(keys)]
        else:
            first = index % len(keys)
            delta = position - keys[first][2]
            keys[first:] = [(raw, shift(at, delta, ROPE), old + delta) for raw, at, old in keys[first:]]
    for raw, at, position in keys:
        assert torch.allclose(at, _at(raw, position), atol=2e-5, rtol=0)


@given(POSITIONS, POSITIONS, st.integers(-100_000, 100_000))
@settings(max_examples=100, deadline=None)
def test_scores_depend_on_distance_alone(query: int, key: int, offset: int) -> None:
    generator = torch.Generator().manual_seed(query ^ key)
    q, k = torch.randn(2, 1, 64, generator=generator)
    here = _at(q, query) @ _at(k, key).T
    there = _at(q, query + offset) @ _at(k, key + offset).T
    assert torch.allclose(here, there, atol=1e-4, rtol=0)


def test_no_shift_is_the_same_tensor() -> None:
    x = torch.randn(2, 3, 64)
    assert shift(x, 0, ROPE) is x


def test_partial_rotation_passes_the_rest() -> None:
    x = torch.randn(2, 3, 80)
    turned = rotate(x, rotation(torch.arange(5, 8), ROPE))
    assert torch.equal(turned[..., 64:], x[..., 64:])
    assert torch.equal(turned[..., :64], rotate(x[..., :64], rotation(torch.arange(5, 8), ROPE)))


def test_dual_chunk_rules_of_qwen() -> None:
    rules = DualChunk(262_144, 8_192, 262_144)

    def at(position: int, key_chunk: int) -> int:
        positions = query_positions(rules, position, 1, key_chunk, torch.device("cpu"))
        return int(positions[0])

    assert period(rules) == 253_952
    assert at(253_951, 0) == 253_951
    assert at(253_952, 1) == 0
    assert at(253_952 + 8_192, 0) == 262_144
    assert at(253_952 + 8_191, 0) == 262_143
    assert at(3 * 253_952, 0) == 262_144
    in_a_row = query_positions(rules, 253_952 + 8_190, 5, 0, torch.device("cpu"))
    assert in_a_row.tolist() == [262_142, 262_143, 262_144, 262_144, 262_144]
    assert temperature(rules, 262_144) == 1.0
    assert abs(temperature(rules, 1_010_000) - 1.288) < 1e-3
