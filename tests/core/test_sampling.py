"""Choosing tokens: penalties for what was picked, the likeliest beside it."""

from __future__ import annotations

import pytest
import torch

from livingkv.errors import InputError
from livingkv.sampling import Sampler, Sampling, pick_all

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


def test_several_rows_are_picked_as_each_alone() -> None:
    ways = (
        Sampling(),
        Sampling(temperature=0.7, seed=1),
        Sampling(temperature=1.5, top_k=3, seed=2),
        Sampling(temperature=1.5, top_p=0.6, seed=3),
        Sampling(temperature=0.9, top_k=900, top_p=0.9, frequency_penalty=1.0, seed=4),
        Sampling(repetition_penalty=1.5),
    )
    alone, together = ([Sampler(how, [4], n_likeliest=n % 3) for n, how in enumerate(ways)] for _ in range(2))
    for seed in range(30):
        logits = 2 * torch.randn(len(ways), 50, generator=torch.Generator().manual_seed(seed))
        assert pick_all(together, logits) == [one.pick(row) for one, row in zip(alone, logits, strict=True)]
    for one, other in zip(alone, together, strict=True):
        assert one.log_probabilities == pytest.approx(other.log_probabilities) and one.likeliest[0:1] != []
        assert [[token for token, _ in row] for row in one.likeliest] == [
            [t for t, _ in row] for row in other.likeliest
        ]


def test_who_needs_the_likeliest_token_alone() -> None:
    assert Sampler(Sampling()).is_greedy and Sampler(Sampling()).is_common
    for how in (Sampling(temperature=0.1), Sampling(presence_penalty=0.1), Sampling(repetition_penalty=1.1)):
        assert not Sampler(how).is_greedy
    assert not Sampler(Sampling(), n_likeliest=1).is_greedy
