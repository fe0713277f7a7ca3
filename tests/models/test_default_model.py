"""The default model, with its real weights: what it is, and that its text and tokens survive."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from livingkv.model_sources import DEFAULT_MODEL, PUBLISHED, find_model
from livingkv.models import LoadedModel, load_model

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(DEFAULT_MODEL, device="cpu")


def test_its_facts(model: LoadedModel) -> None:
    shape = model.shape
    assert (shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.head_dim) == (24, 14, 2, 64)
    assert (shape.vocab_size, shape.native_context) == (151936, 32768)
    assert (model.name, model.dtype, model.quantization) == (DEFAULT_MODEL, torch.bfloat16, "none")
    assert model.dual_chunk is None
    assert model.rope_text == "half-split dim=64 attention_factor=1 rope_theta=1000000.0 rope_type='default'"
    assert model.stop_ids == {151643, 151645}


def test_its_digests_do_not_depend_on_who_converted_it(model: LoadedModel) -> None:
    assert model.model_digest == "29cd8bb6a3b81023a129535607c794fa"
    assert model.tokenizer_digest == "24b96baa37e5ba3058b911bc861e5a5f"


def test_its_key_biases_are_the_outliers(model: LoadedModel) -> None:
    peaks = [float(bias.abs().max()) for bias in model.key_bias if bias is not None]
    assert len(peaks) == 24
    assert (peaks[0], peaks[1]) == (145, 158)


def test_its_own_output_weights_are_kept(model: LoadedModel) -> None:
    network = model.network
    assert network.lm_head.weight.data_ptr() != network.model.embed_tokens.weight.data_ptr()
    assert not network.config.tie_word_embeddings


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n\treturn {'a': x ** 2}  # naïve\r\n",
        "日本語 中文 한국어 हिन्दी العربية",
        "🙂👩‍👩‍👧‍👦🏳️‍🌈 𝔘𝔫𝔦",
        "<|im_start|>user\nhi<|im_end|>\n<tool_call>",
        " leading, trailing \n\n\n  \t ",
    ],
)
def test_text_survives_its_tokenizer(model: LoadedModel, text: str) -> None:
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert model.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_it_follows_its_chat_template(model: LoadedModel) -> None:
    chat = [{"role": "user", "content": "What is the capital of France? One word."}]
    prompt = model.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = model.tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        following = [int(ids[0, -1])]
        for _ in range(4):
            logits = model.network(ids).logits
            following.append(int(logits[0, -1].argmax()))
            ids = torch.cat([ids, torch.tensor([[following[-1]]])], dim=1)
            if following[-1] in model.stop_ids:
                break
    assert "Paris" in model.tokenizer.decode(following)


def test_a_later_start_needs_no_network_and_maps_its_weights(model: LoadedModel) -> None:
    """A new process, with neither hub nor package index, holds far less than the 1.26 GB of weights after loading."""
    script = (
        "import psutil, livingkv.models as m; m.load_model(device='cpu');"
        "print(psutil.Process().memory_full_info().uss >> 20)"
    )
    assert PUBLISHED[DEFAULT_MODEL].sha256[:16] in find_model(DEFAULT_MODEL).folder.name
    nowhere = {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **nowhere}, capture_output=True, text=True, check=True
    )
    assert int(result.stdout) < 900
    assert result.stderr == ""
