"""What vectors have in common: taken away, and half of it, against plain linear algebra."""

from __future__ import annotations

import numpy as np

from livingkv.index.common_part import CommonPart, unit

ROWS = (np.random.default_rng(3).standard_normal((300, 24)) * np.linspace(5, 0.1, 24) + 7).astype(np.float32)
PROBES = (np.random.default_rng(4).standard_normal((5, 24)) + 7).astype(np.float32)


def test_the_strongest_directions_are_gone() -> None:
    common = CommonPart.strongest(ROWS, 3)
    exact = np.linalg.svd(ROWS - ROWS.mean(0), full_matrices=False)[2][:3]
    removed = common.removed(PROBES)
    assert np.abs(removed @ exact.T).max() < 1e-3
    centred = PROBES - ROWS.mean(0)
    assert np.allclose(removed, centred - centred @ exact.T @ exact, atol=1e-3)


def test_half_whitening_has_the_cosines_of_the_plain_formula() -> None:
    centred = ROWS - ROWS.mean(0)
    variances, directions = np.linalg.eigh(centred.T @ centred / len(ROWS))
    plain = (PROBES - ROWS.mean(0)) @ (directions / (variances + 1e-3 * variances.mean()) ** 0.25)
    half = CommonPart.half_whitening(ROWS).removed(PROBES)
    assert np.allclose(unit(half) @ unit(half).T, unit(plain) @ unit(plain).T, atol=1e-3)


def test_few_rows_leave_other_directions_whole() -> None:
    common = CommonPart.half_whitening(ROWS[:4])
    assert common.directions.shape == (4, 24)
    across = np.random.default_rng(5).standard_normal(24).astype(np.float32)
    across -= across @ common.directions.T @ common.directions
    assert np.allclose(common.removed(common.mean + across), across, atol=1e-4)


def test_rows_that_are_all_the_same_have_no_direction() -> None:
    removed = CommonPart.half_whitening(np.ones((5, 8), np.float32)).removed(np.full((1, 8), 2, np.float32))
    assert np.isfinite(removed).all()
