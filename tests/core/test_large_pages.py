"""Buffers in large pages: the same numbers, and memory that lives as long as the tensor."""

from __future__ import annotations

import gc

import pytest
import torch

from livingkv.codec import PageShape
from livingkv.large_pages import private_mapping
from livingkv.model_rope import Rope
from livingkv.workspace import Workspace


def test_a_mapping_is_zeros_that_can_be_written() -> None:
    with private_mapping(10_000) as mapping:
        mapping[5] = 7
        assert mapping[4:7] == b"\0\7\0" and len(mapping) == 10_000


@pytest.mark.parametrize("capacity", [64, 5000])
def test_a_workspace_about_to_be_filled_keeps_its_shape(capacity: int) -> None:
    shape, rope = PageShape(4, 2, 128, torch.bfloat16), Rope(torch.ones(64, dtype=torch.float64), 1.0)
    space = Workspace(shape, rope, capacity, torch.device("cpu"))
    known = space.keys.shape, space.keys.stride(), space.keys.dtype, space.size_bytes
    space.fill_soon()
    for part in (space.keys, space.values):
        assert (part.shape, part.stride(), part.dtype, 2 * part.nbytes) == known
    space.keys.fill_(2.0)
    space.values.fill_(3.0)
    keys = space.keys
    del space
    gc.collect()
    assert bool((keys == 2.0).all())
