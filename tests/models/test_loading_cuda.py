"""Loading onto a CUDA device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from livingkv.models import load_model
from tests.models.test_loading import model_folder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path / "cache"))


def test_the_gpu_is_the_default_and_computes_the_same(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    there, here = load_model(folder, weights="fp32"), load_model(folder, weights="fp32", device="cpu")
    assert there.device.type == "cuda"
    assert (there.model_digest, there.rope_text) == (here.model_digest, here.rope_text)
    assert all(bias is not None and bias.is_cuda for bias in there.key_bias)
    assert torch.equal(there.rope.inverse_frequencies, here.rope.inverse_frequencies)
    ids = torch.tensor([[1, 2, 3, 4]])
    torch.testing.assert_close(there.network(ids.cuda()).logits.cpu(), here.network(ids).logits, rtol=1e-3, atol=1e-3)
    assert load_model(folder).dtype == torch.bfloat16


@pytest.mark.parametrize("weights", ["8bit", "4bit"])
def test_packed_weights(tmp_path: Path, weights: Any) -> None:
    pytest.importorskip("bitsandbytes")
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    folder = model_folder(tmp_path / "m", **sizes)
    packed, plain = load_model(folder, weights=weights), load_model(folder)
    ids = torch.tensor([[1, 2, 3, 4]], device=plain.device)
    ours, theirs = packed.network(ids).logits.float().flatten(), plain.network(ids).logits.float().flatten()
    assert packed.quantization == weights
    assert 0.9 < float(torch.cosine_similarity(ours, theirs, dim=0)) < 1
