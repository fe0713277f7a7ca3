"""The tiny models that other tests stand on."""

from __future__ import annotations

import pytest
import torch

from tests.tiny import FAMILIES, NATIVE_CONTEXT, VOCAB_SIZE, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_runs_and_is_the_same_every_time(family: str) -> None:
    model = tiny_model(family)
    ids = torch.tensor([model.tokenizer("Hello, the world.")["input_ids"]])
    logits = model.network(ids).logits
    assert logits.shape == (1, ids.shape[1], VOCAB_SIZE)
    assert torch.equal(logits, tiny_model(family).network(ids).logits)
    assert not torch.equal(logits, tiny_model(family, seed=1).network(ids).logits)
    assert (model.shape.n_heads, model.shape.n_kv_heads, model.shape.head_dim) == (4, 2, 16)
    assert model.shape.native_context == NATIVE_CONTEXT


def test_key_biases_are_large_where_the_family_has_them() -> None:
    biases = tiny_model("qwen2").key_bias
    assert all(bias is not None and bias.abs().max() > 5 for bias in biases)
    assert tiny_model("llama").key_bias == (None, None, None)
    assert tiny_model("qwen3").key_bias == (None, None, None)


def test_bfloat16_keeps_the_rotary_frequencies() -> None:
    model = tiny_model("qwen2", dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.rope.inverse_frequencies, tiny_model("qwen2").rope.inverse_frequencies)


def test_the_tokenizer_keeps_any_text() -> None:
    tokenizer = tiny_tokenizer()
    text = "the thing\r\n\tand 日本語 👩‍👩‍👧 \u00a0é́ <|im_end|> \x00"
    assert len(tokenizer) <= VOCAB_SIZE
    assert tokenizer.decode(tokenizer(text)["input_ids"], clean_up_tokenization_spaces=False) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
