"""The mixing of components is orthogonal, spreads outliers, and never changes."""

from __future__ import annotations

import numpy as np
import pytest

from livingkv.index.mixing import block_size, mixed, shortened, uniforms


@pytest.mark.parametrize("dimension", [1, 2, 7, 64, 96, 384, 896])
def test_mixing_keeps_lengths_and_angles(dimension: int) -> None:
    vectors = np.random.default_rng(1).standard_normal((5, dimension)).astype(np.float32)
    np.testing.assert_allclose(mixed(vectors) @ mixed(vectors).T, vectors @ vectors.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dimension", [384, 896])
def test_mixing_spreads_a_single_component(dimension: int) -> None:
    spike = np.zeros((1, dimension), np.float32)
    spike[0, 3] = 1.0
    assert np.abs(mixed(spike)).max() <= block_size(dimension) ** -0.5 + 1e-6


def test_shortening_keeps_angles_about() -> None:
    vectors = np.random.default_rng(2).standard_normal((20, 3584)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    short = shortened(vectors, 896)
    assert short.shape == (20, 896)
    assert np.abs(short @ short.T - vectors @ vectors.T).max() < 0.2
    assert shortened(vectors, 4000) is vectors


def test_the_signs_are_part_of_the_format() -> None:
    assert [round(float(number), 6) for number in uniforms(b"livingkv signs", 4)] == [
        0.392481,
        0.949264,
        0.476238,
        0.097183,
    ]
    one = np.ones((1, 4), np.float32)
    np.testing.assert_allclose(mixed(one), [[-1, -1, 1, -1]], atol=1e-6)
