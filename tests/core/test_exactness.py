"""With everything attended, logits are those of plain Hugging Face; dual-chunk positions are those of the literal
rules."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from livingkv.codec import PageShape
from livingkv.engine import Engine
from livingkv.models import DualChunk, LoadedModel
from livingkv.runner import Runner
from livingkv.workspace import Workspace
from tests.core.dual_chunk_reference import dual_chunk_attention
from tests.tiny import FAMILIES, VOCAB_SIZE, tiny_model, tiny_network

CPU = torch.device("cpu")


def tokens(n: int, seed: int = 0) -> Tensor:
    """Random token ids [n]."""
    return torch.randint(0, VOCAB_SIZE, (n,), generator=torch.Generator().manual_seed(seed))


class WideRotary(nn.Module):
    """The model's own rotary module with angles in fp64, as livingkv computes them."""

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.frequencies = rotary.inv_freq.double()

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin in x's dtype."""
        angles = position_ids.double()[..., None] * self.frequencies
        both = torch.cat((angles, angles), -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


def read_in_blocks(model: LoadedModel, ids: Tensor, blocks: list[int], *, chunked: DualChunk | None = None) -> Tensor:
    """Logits [tokens, vocabulary] of `ids` read in blocks of the given sizes into one workspace."""
    shape = PageShape(model.shape.n_layers, model.shape.n_kv_heads, model.shape.head_dim, model.dtype)
    space = Workspace(shape, model.rope, len(ids), CPU, chunked)
    runner = Runner(model)
    parts = torch.split(ids, blocks)
    return torch.cat([runner.logits(part, space, "all")[0] for part in parts])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "blocks",
    [[200], [64, 64, 72], [1, 2, 120, 1, 76], pytest.param([1] * 200, marks=pytest.mark.slow)],
    ids=["one", "even", "odd", "steps"],
)
def test_logits_equal_plain_hugging_face(family: str, blocks: list[int]) -> None:
    ids = tokens(200)
    plain = tiny_network(family)
    plain.base_model.rotary_emb = WideRotary(plain.base_model.rotary_emb)
    with torch.inference_mode():
        want = plain(ids[None]).logits[0]
    got = read_in_blocks(tiny_model(family), ids, blocks)
    assert (got - want).abs().max() <= 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_hugging_face_with_its_own_fp32_angles(family: str) -> None:
    ids = tokens(200)
    with torch.inference_mode():
        want = tiny_network(family)(ids[None]).logits[0]
    assert (read_in_blocks(tiny_model(family), ids, [200]) - want).abs().max() <= 1e-4


@pytest.mark.parametrize("blocks", [[120], [33, 1, 86], [1] * 120], ids=["one", "odd", "steps"])
def test_dual_chunk_is_absolute_below_the_chunk_size_to_the_last_bit(blocks: list[int]) -> None:
    ids, rules = tokens(120), DualChunk(160, 32, 2048)
    model = tiny_model()
    assert torch.equal(read_in_blocks(model, ids, blocks), read_in_blocks(model, ids, blocks, chunked=rules))


class LiteralState:
    """An AttentionState that applies the literal rules to a whole sequence in one pass."""

    room = 10_000

    def __init__(self, model: LoadedModel, rules: DualChunk) -> None:
        self._model, self._rules = model, rules

    def begin(self, n_tokens: int) -> None:
        """Nothing to prepare."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Literal attention."""
        out = dual_chunk_attention(query[0], key[0], value[0], self._model.rope, self._rules, scale)
        return out.to(query.dtype)[None]

    def finish(self, n_tokens: int) -> None:
        """Nothing to keep."""


@cache
def literal_logits(family: str, rules: DualChunk) -> Tensor:
    """Logits of 80 tokens by the literal rules; slow, so once for each family."""
    model = tiny_model(family)
    return Runner(model).logits(tokens(80), LiteralState(model, rules), "all")[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("blocks", [[80], [40, 1, 39], [1] * 80], ids=["one", "odd", "steps"])
def test_dual_chunk_beyond_three_chunks_equals_the_literal_rules(family: str, blocks: list[int]) -> None:
    rules = DualChunk(32, 8, 4096)  # period 24: chunks 0 to 3
    model, ids = tiny_model(family), tokens(80)
    want = literal_logits(family, rules)
    assert (read_in_blocks(model, ids, blocks, chunked=rules) - want).abs().max() <= 1e-4
    assert (read_in_blocks(model, ids, blocks) - want).abs().max() > 1e-2, "the rules must matter here"


def test_temperature_is_that_of_the_length_read_so_far() -> None:
    """One block within the first chunk: both sides have one length, so the literal rules apply with their
    temperature."""
    rules = DualChunk(160, 32, 160)
    rules_short = DualChunk(40, 8, 40)
    model, ids = tiny_model("llama"), tokens(32)
    assert torch.equal(read_in_blocks(model, ids, [32], chunked=rules), read_in_blocks(model, ids, [32]))
    want = Runner(model).logits(ids, LiteralState(model, rules_short), "all")[0]
    assert (read_in_blocks(model, ids, [32], chunked=rules_short) - want).abs().max() <= 1e-4


def test_a_mistral_block_of_a_session_equals_hugging_face_through_pages() -> None:
    """Through the hot window with lossless pages and a window that holds everything."""
    from livingkv.settings import Settings

    ids = tokens(300, seed=4)
    model = tiny_model("mistral")
    with torch.inference_mode():
        want = tiny_network("mistral")(ids[None]).logits[0]
    engine = Engine.of(model, "lossless")
    hot = engine.hot_window(Settings(window_tokens=512, block_tokens=64), 16)
    got = engine.runner.logits(ids, hot, "all")[0]
    assert (got - want).abs().max() <= 1e-4
    assert hot.n_sealed == 256 and len(hot.take_sealed()) == 4
