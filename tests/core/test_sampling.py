"""Choosing tokens: penalties for what was picked, the likeliest beside it."""

from __future__ import annotations

import pytest
import torch

from livingkv.errors import InputError
from livingkv.sampling import Sampler, Sampling

LOGITS = torch.tensor([2.0, 1.5, 1.0, -1.0])


def picked(n: int, *, presence: float = 0.0, frequency: float = 0.0) -> list[int]:
    """The tokens that are picked from the same logits, one after the other."""
    sampler = Sampler(Sampling(presence_penalty=presence, frequency_penalty=frequency))
    return [sampler.pick(LOGITS) for _ in range(n)]


def test_presence_counts_once_and_frequency_each_time() -> None:
    assert picked(4) == [0, 0, 0, 0]
    assert picked(6, presence=0.75) == [0, 1, 0, 0, 0, 0]
    assert picked(6, frequency=0.6) == [0, 1, 0, 2, 1, 0]
    assert picked(3, presence=-1.0) == [0, 0, 0]


def test_penalties_have_a_range() -> None:
    with pytest.raises(InputError, match="presence_penalty"):
        Sampling(presence_penalty=2.5)
    with pytest.raises(InputError, match="frequency_penalty"):
        Sampling(frequency_penalty=-2.5)


def test_the_likeliest_are_those_of_the_model_whatever_is_picked() -> None:
    sampler = Sampler(Sampling(presence_penalty=1.0), n_likeliest=2)
    tokens = [sampler.pick(LOGITS) for _ in range(2)]
    assert tokens == [0, 1]
    wanted = LOGITS.log_softmax(-1)
    for place in sampler.likeliest:
        assert [token for token, _ in place] == [0, 1]
        assert [value for _, value in place] == pytest.approx(wanted[:2].tolist())
    assert sampler.log_probabilities == pytest.approx(wanted[:2].tolist())
    plain = Sampler(Sampling())
    plain.pick(LOGITS)
    assert plain.likeliest == [[]]
