"""The scale of a question's cosines: a sample that is even however rows come, spreads that join."""

from __future__ import annotations

import numpy as np
import pytest

from livingkv.index.background import LEAST_SENTENCES, EvenSample, Spread


@pytest.mark.parametrize("batch", [1, 7, 333, 5000])
def test_a_sample_is_evenly_spaced_whatever_the_batches(batch: int) -> None:
    sample = EvenSample(2)
    numbers = np.arange(5000)
    codes = np.stack((numbers // 64, numbers % 64), 1).astype(np.uint8) + 128  # a row says which it is
    for lo in range(0, 5000, batch):
        sample.add(codes[lo : lo + batch])
    rows = sample.products(np.array([64, 1], np.float32))
    assert rows.tolist() == list(range(0, 5000, 8)) and sample.n_seen == 5000


def test_joined_spreads_are_the_spread_of_all() -> None:
    cosines = np.random.default_rng(0).normal(0.3, 0.1, 300).astype(np.float32)
    joined = Spread.of(cosines[:100], 100).joined(Spread.of(cosines[100:], 200))
    whole = Spread.of(cosines, 300)
    assert joined.n == 300 and np.allclose(joined, whole, atol=1e-6)
    assert joined.joined(Spread(0, 0.0, 0.0)) == joined


def test_salience_counts_deviations_and_says_nothing_of_few_or_equal_sentences() -> None:
    assert Spread(LEAST_SENTENCES, 0.5, 0.01).salience(0.7) == pytest.approx(2.0)
    assert Spread(LEAST_SENTENCES - 1, 0.5, 0.01).salience(0.7) is None
    assert Spread(1000, 0.5, 0.0).salience(0.7) is None
    assert Spread.of(np.zeros(0, np.float32), 10).salience(1.0) is None
