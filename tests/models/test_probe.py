"""What is found out by running attention layers: shapes, key biases, and everything that livingkv cannot serve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from livingkv.errors import UnsupportedModel
from livingkv.model_probe import probe_attention
from livingkv.model_rope import read_rope
from livingkv.models import from_network
from tests.tiny import tiny_model, tiny_network, tiny_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 304,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def small_network(kind: str, **changes: Any) -> Any:
    """A random network of any decoder family, with those of SIZES that its config knows."""
    plain = AutoConfig.for_model(kind)
    known = {name: value for name, value in SIZES.items() if hasattr(plain, name)}
    config = AutoConfig.for_model(kind, **(known | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    return network.eval()


EXPERTS = {"num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    ("kind", "changes", "rotary_dim", "biased"),
    [
        ("qwen2", {}, 16, True),
        ("llama", {}, 16, False),
        ("llama", {"attention_bias": True}, 16, True),
        ("mistral", {"sliding_window": None}, 16, False),
        ("qwen3", {}, 16, False),
        ("qwen3", {"attention_bias": True}, 16, False),
        ("mixtral", {"num_local_experts": 4}, 16, False),
        ("qwen3_moe", EXPERTS, 16, False),
        ("phi3", {}, 16, False),
        ("gemma", {}, 16, False),
        ("granite", {}, 16, False),
        ("olmo2", {}, 16, False),
        ("starcoder2", {"sliding_window": None}, 16, True),
        ("seed_oss", {}, 16, True),
        ("phi", {}, 8, True),
        ("nemotron", {}, 8, False),
        ("stablelm", {"use_qkv_bias": True}, 4, True),
        ("gpt_neox", {}, 4, False),
    ],
)
def test_accepted_with_its_facts(kind: str, changes: dict[str, Any], rotary_dim: int, biased: bool) -> None:
    network = small_network(kind, **changes)
    rope = read_rope(network.base_model.rotary_emb)
    facts = probe_attention(network, rope, max_window=2048)
    n_kv_heads = 2 if hasattr(network.config, "num_key_value_heads") else 4
    assert (facts.n_layers, facts.n_heads, facts.n_kv_heads, facts.head_dim) == (2, 4, n_kv_heads, 16)
    assert rope.rotary_dim == rotary_dim
    assert [bias is not None for bias in facts.key_bias] == [biased] * 2


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("cohere", {}, "half-split layout"),
        ("glm", {}, "half-split layout"),
        ("glm4", {}, "half-split layout"),
        ("helium", {}, "half-split layout"),
        ("ernie4_5", {}, "half-split layout"),
        ("nanochat", {}, "half-split layout"),
        ("diffllama", {}, "attention interface"),
        ("jetmoe", {"num_local_experts": 4}, "self_attn"),
        ("mistral", {"sliding_window": 64}, "sliding window of 64 tokens"),
        ("gpt2", {"n_embd": 64, "n_head": 4, "n_layer": 2}, "rotary_emb"),
    ],
)
def test_refused_by_what_it_does(kind: str, changes: dict[str, Any], reason: str) -> None:
    network = small_network(kind, **changes)
    rotary = getattr(network.base_model, "rotary_emb", None) or tiny_network("llama").model.rotary_emb
    with pytest.raises(UnsupportedModel, match=reason):
        probe_attention(network, read_rope(rotary), max_window=2048)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_key_bias_is_the_layers_own_in_any_dtype(dtype: torch.dtype) -> None:
    model = tiny_model("qwen2", dtype=dtype)
    for layer, bias in zip(model.network.model.layers, model.key_bias, strict=True):
        assert bias is not None
        assert bias.shape == (2, 16)
        assert torch.equal(bias.flatten(), layer.self_attn.k_proj.bias)


def test_a_norm_after_the_rotation_is_found() -> None:
    network = small_network("hunyuan_v1_dense")
    rope = read_rope(network.model.rotary_emb)
    probe_attention(network, rope, max_window=2048)  # all its norm weights are one: the norm commutes with rotations
    torch.nn.init.normal_(network.model.layers[1].self_attn.key_layernorm.weight)
    with pytest.raises(UnsupportedModel, match="something follows"):
        probe_attention(network, rope, max_window=2048)


def test_one_frequency_off_by_a_thousandth_is_found() -> None:
    network = tiny_network("llama")
    rope = read_rope(network.model.rotary_emb)
    rope.inverse_frequencies[3] *= 1.001
    with pytest.raises(UnsupportedModel, match="half-split layout"):
        probe_attention(network, rope, max_window=2048)


def test_layers_without_positions_are_found() -> None:
    network = small_network("smollm3", no_rope_layers=[1, 0], layer_types=["full_attention"] * 2)
    with pytest.raises(UnsupportedModel, match="half-split layout"):
        probe_attention(network, read_rope(network.model.rotary_emb), max_window=2048)


def test_nothing_is_left_behind_even_by_a_failure() -> None:
    before = list(ALL_ATTENTION_FUNCTIONS.keys())
    for network in (tiny_network("qwen2"), small_network("cohere")):
        try:
            from_network(network, tiny_tokenizer(), name="net")
        except UnsupportedModel as error:
            assert str(error).startswith("net (cohere) cannot be used: ")
        assert network.config._attn_implementation == "eager"
    assert list(ALL_ATTENTION_FUNCTIONS.keys()) == before


def test_a_tokenizer_larger_than_the_network_is_refused() -> None:
    ends: dict[str, Any] = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": 1}
    with pytest.raises(UnsupportedModel, match="tokens, its network 256"):
        from_network(tiny_network("llama", vocab_size=256, **ends), tiny_tokenizer())
