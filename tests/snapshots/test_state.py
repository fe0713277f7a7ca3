"""Caches to bytes and back: every tensor, its strides and its aliases; what is not understood is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from livingkv.errors import SnapshotDamaged, UnsupportedModel
from livingkv.snapshots import cache_argument, fresh_cache
from livingkv.snapshots.cropping import crop, may_crop
from livingkv.snapshots.memory_blocks import packed, unpacked
from livingkv.snapshots.state import restored_cache, state_of
from tests.snapshots.conftest import FAMILIES, NetworkOf

CPU = torch.device("cpu")


def read(network: Any, cache: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        tokens, named = torch.tensor([ids], device=network.device), {cache_argument(network): cache}
        logits: torch.Tensor = network(tokens, **named, use_cache=True).logits
    return logits


def test_tensors_come_back_as_they_were() -> None:
    base = torch.arange(48.0).view(2, 4, 6)
    tensors = [
        base.transpose(1, 2).clone(memory_format=torch.preserve_format),
        torch.randn(3).to(torch.bfloat16),
        torch.tensor([]),
        torch.tensor(5),
        torch.ones(3, dtype=torch.bool),
        torch.arange(6)[None].expand(4, 6),
        torch.randn(1000)[3:7],
        torch.randn(2, 8)[:, 2:4],
    ]
    blocks, views = packed(tensors)
    found = unpacked(blocks, views, CPU)
    for old, new in zip(tensors, found, strict=True):
        assert torch.equal(old, new) and old.dtype == new.dtype
        assert old.data_ptr() % 64 == new.data_ptr() % 64 or not old.numel()
        assert new.data_ptr() != old.data_ptr() or not old.numel()
    assert found[0].stride() == tensors[0].stride()
    assert sum(block.n_bytes for block in blocks[6:]) == 4 * 4 + 4 * 4, "what a view does not show is not kept"


def test_tensors_that_share_memory_share_it_afterwards() -> None:
    base = torch.zeros(4, 4)
    tensors = [base[:3], base[2:], base[1:2, 1:2], torch.zeros(4)]
    blocks, views = packed(tensors)
    assert len(blocks) == 2
    head, tail, inner, other = unpacked(blocks, views, CPU)
    head[2, 0], head[1, 1] = 7.0, 8.0
    assert tail[0, 0] == 7 and inner[0, 0] == 8 and not other.any() and not base.any()
    same = packed([base, base.view(4, 4)])
    one, two = unpacked(*same, CPU)
    assert one is two


@pytest.mark.parametrize("family", FAMILIES)
def test_a_restored_cache_goes_on_bit_for_bit(family: str, network_of: NetworkOf) -> None:
    network = network_of(family)
    fresh = fresh_cache(network)
    live = fresh()
    ids = torch.randint(2, 96, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    read(network, live, ids[:21])
    state = state_of(live)
    before = [(block.data.clone()) for block in state.blocks]
    for _ in range(2):  # a state is used as often as one likes
        restored = restored_cache(state, fresh, CPU)
        if family == "deepseek_v4":
            assert [layer.keys is layer.values for layer in restored.layers] == [False, True, True]
        went_on = [read(network, restored, ids[21:30]), *(read(network, restored, [one]) for one in ids[30:])]
    expected = [read(network, live, ids[21:30]), *(read(network, live, [one]) for one in ids[30:])]
    assert all(torch.equal(one, other) for one, other in zip(went_on, expected, strict=True))
    assert all(torch.equal(one, block.data) for one, block in zip(before, state.blocks, strict=True))


def test_caches_without_a_config_grow_their_layers() -> None:
    cache = DynamicCache()
    cache.update(torch.ones(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), 0)
    restored = restored_cache(state_of(cache), DynamicCache, CPU)
    assert torch.equal(restored.layers[0].keys, cache.layers[0].keys) and restored.get_seq_length() == 3


def test_what_is_not_understood_is_refused() -> None:
    cache = DynamicCache()
    cache.update(torch.ones(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), 0)
    layer: Any = cache.layers[0]
    for strange in (object(), {1.5: 2}, torch.ones(2, dtype=torch.complex64), {3, 4}, torch.ones(2).to_sparse()):
        layer.strange = strange
        with pytest.raises(UnsupportedModel, match="cannot be kept in a snapshot"):
            state_of(cache)
    layer.strange = [cache.layers[0].__dict__, cache.layers[0].__dict__]
    with pytest.raises(UnsupportedModel):
        state_of(cache)


@pytest.mark.parametrize(
    "change",
    [
        lambda layers: layers[0].update({"class": "builtins.object"}),
        lambda layers: layers[0]["vars"].update({"update": None}),
        lambda layers: layers[0]["vars"].update({"keys": {"tensor": 99}}),
        lambda layers: layers[0]["vars"].update({"keys": {"other": 1}}),
        lambda layers: layers[0].pop("vars"),
        lambda layers: layers.append(layers[0]),
    ],
)
def test_states_that_do_not_fit_make_no_cache(change: Any, network_of: NetworkOf) -> None:
    network = network_of("qwen3_moe")
    cache = fresh_cache(network)()
    read(network, cache, [3, 4])
    state = state_of(cache)
    change(state.layers)
    with pytest.raises(SnapshotDamaged):
        restored_cache(state, fresh_cache(network), CPU)


def test_only_caches_that_can_be_cut_exactly_are_cut(network_of: NetworkOf) -> None:
    """deepseek_v4 says of itself that it can be cropped, and computes other logits then."""
    for family in ("deepseek_v4", "qwen3_next", "qwen4_exp_text"):
        cache = fresh_cache(network_of(family))()
        read(network_of(family), cache, [5, 6, 7, 8])
        assert not may_crop(cache)
        with pytest.raises(UnsupportedModel, match="cannot be cut exactly"):
            crop(cache, 2)
    network = network_of("qwen3_moe")
    cut, plain = DynamicCache(config=network.config), DynamicCache(config=network.config)
    assert {type(layer) for layer in cut.layers} == {DynamicLayer}
    read(network, cut, [5, 6, 7])
    read(network, cut, [8, 9])
    crop(cut, 3)
    read(network, plain, [5, 6, 7])
    assert cut.get_seq_length() == 3
    assert torch.equal(read(network, cut, [11, 12]), read(network, plain, [11, 12]))
