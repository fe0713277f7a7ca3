"""The default model through livingkv against plain Hugging Face, in fp32."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from livingkv.codec import PageShape
from livingkv.models import LoadedModel, load_model
from livingkv.runner import Runner
from livingkv.workspace import Workspace
from tests.model.conftest import NOTES

pytestmark = pytest.mark.model

BLOCKS = ([512], [100, 1, 28, 127])
"""One pass, and chunks. Over more chunked tokens fp32 rounds apart by more than the bound: 1.4e-4 at 512, because
products of other shapes sum in another order."""


@pytest.fixture(scope="module")
def wide_model() -> Iterator[LoadedModel]:
    """The default model in fp32."""
    yield load_model(device="cpu", weights="fp32")
    gc.collect()


def test_logits_are_those_of_plain_hugging_face(wide_model: LoadedModel) -> None:
    text = (NOTES / "1-monday.md").read_text("utf-8")
    ids = torch.tensor(wide_model.tokenizer(text)["input_ids"][:512])
    with torch.inference_mode():
        want = wide_model.network(ids[None]).logits[0]
    shape = PageShape(wide_model.shape.n_layers, wide_model.shape.n_kv_heads, wide_model.shape.head_dim, torch.float32)
    runner = Runner(wide_model)
    for blocks in BLOCKS:
        n = sum(blocks)
        space = Workspace(shape, wide_model.rope, n, wide_model.device)
        got = torch.cat([runner.logits(part, space, "all")[0] for part in torch.split(ids[:n], blocks)])
        assert (got - want[:n]).abs().max() <= 1e-4, blocks
