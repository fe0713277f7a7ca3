"""What a model keeps of a token is counted as a real network keeps it, and its weights as they are."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, DynamicCache

from livingkv.codec import PageShape, page_bytes
from livingkv.errors import InputError, ModelNotFound
from livingkv.planner.fact import ModelFacts, with_bits
from livingkv.planner.facts import cached_facts, config_facts, model_facts
from livingkv.planner.inputs import inputs_of
from livingkv.planner.kv_layers import layers_of
from livingkv.planner.laws import laws
from livingkv.planner.options import amounts_of
from livingkv.planner.units import Amount
from livingkv.planner.working import worked
from tests.planner.models import config

N_TOKENS = 6  # fewer than the windows: nothing was dropped yet


def number(model: ModelFacts, name: str) -> float | None:
    found = model.facts[name].amount
    return None if found is None else found.value


def network_of(kind: str, **changes: Any) -> Any:
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {kind}")
    found = AutoConfig.for_model(**config(kind, **changes))
    return AutoModelForCausalLM.from_config(found, dtype=torch.bfloat16).eval().requires_grad_(False)


def cache_of(network: Any, n_tokens: int = N_TOKENS) -> Any:
    out = network(torch.arange(1, n_tokens + 1)[None], use_cache=True)
    found = getattr(out, "past_key_values", None)
    return out.cache_params if found is None else found


@pytest.mark.parametrize(
    "kind",
    [
        *("qwen2", "phi3", "gpt2", "mistral", "gemma3_text", "gemma3n_text", "gemma4_text"),
        *("gpt_oss", "qwen3_next", "mamba2", "mamba"),
    ],
)
def test_kv_and_states_are_those_of_a_real_cache(kind: str) -> None:
    network, found = network_of(kind), config_facts(kind, config(kind))
    layers = cache_of(network).layers
    full, bounded, state = 0, 0, 0
    for layer in layers:
        keys = getattr(layer, "keys", None)
        if keys is not None and keys.numel():
            n_elements = (keys.numel() + layer.values.numel()) // N_TOKENS
            if "Sliding" in type(layer).__name__:
                bounded += n_elements
            else:
                full += n_elements
        for name in ("conv_states", "recurrent_states"):
            held = getattr(layer, name, None)
            held = list(held.values()) if isinstance(held, dict) else held
            state += sum(one.nbytes for one in (held if isinstance(held, list) else [held]) if torch.is_tensor(one))
    assert (number(found, "kv_elements"), number(found, "bounded_elements")) == (full, bounded)
    assert number(found, "state_bytes") == state
    assert number(found, "sliding_window") == (8 if bounded else 0)


def bytes_of(found: ModelFacts, n_tokens: int) -> float:
    """Of 16-bit KV of one session, by the laws."""
    given = {name: Amount(1.0, laws().symbols[name].unit) for name in ("users",)}
    given |= {"context": Amount(n_tokens, "token/user"), "hot_bits": Amount(16.0, "bit/element")}
    given |= {name: one.amount for name, one in found.facts.items() if one.amount is not None}
    total = worked(given).results["kv_total_16"].value
    assert total is not None
    return total.to("byte").value


def kept_bytes(network: Any, n_tokens: int) -> int:
    """Of KV in the cache of a real network; the window's last token, which a cache drops early, with them."""
    total = 0
    for layer in cache_of(network, n_tokens).layers:
        if getattr(layer, "keys", None) is not None:
            n_bytes = layer.keys.nbytes + layer.values.nbytes
            n_kept = layer.keys.shape[2]
            total += n_bytes // n_kept * (n_kept + (n_kept < n_tokens))
    return total


DIFFERENT_WINDOWS: list[tuple[str, dict[str, Any]]] = [
    ("gpt_oss", {"0": {"sliding_window": 4}}),
    ("gpt_oss", {"1": {"sliding_window": 12}, "2": {"sliding_window": 12}}),
    ("mistral", {"0": {"sliding_window": 4}, "2": {"sliding_window": None}}),
]


@pytest.mark.parametrize("n_tokens", [3, 6, 10, 20])
@pytest.mark.parametrize("kind", ["gemma3n_text", "gemma4_text", "gemma3_text"])
def test_layers_that_share_kv_keep_it_once(kind: str, n_tokens: int) -> None:
    network = network_of(kind)
    assert bytes_of(config_facts(kind, config(kind)), n_tokens) == kept_bytes(network, n_tokens)


@pytest.mark.parametrize("n_tokens", [3, 6, 10, 20])
@pytest.mark.parametrize(("kind", "layers"), DIFFERENT_WINDOWS)
def test_two_sizes_of_windows_keep_what_a_real_cache_keeps(kind: str, layers: dict[str, Any], n_tokens: int) -> None:
    values = config(kind, per_layer_config=layers)
    network = network_of(kind, per_layer_config=layers, allow_global_per_layer_attribute_access=True)
    windows = {getattr(layer, "sliding_window", None) for layer in DynamicCache(config=network.config).layers}
    if len(windows - {None}) == 1:
        pytest.skip("caches of this transformers have one window for all layers")
    found = config_facts(kind, values)
    assert bytes_of(found, n_tokens) == kept_bytes(network, n_tokens)
    told = config_facts(kind, {**values, "allow_global_per_layer_attribute_access": True})
    assert told.facts == found.facts


def test_layers_that_differ_in_more_than_windows_are_unknown() -> None:
    odd: list[Any] = [
        {"0": {"num_key_value_heads": 1}},
        {"0": {"skip": ["attention"]}},
        {"0": {"sliding_window": 4, "intermediate_size": 8}},
        [1],
        {"0": 3},
    ]
    for layers in odd:
        for extra in ({}, {"allow_global_per_layer_attribute_access": True}):
            found = config_facts("m", config("gpt_oss", per_layer_config=layers, **extra))
            assert number(found, "kv_elements") is None, layers
    sizes = {"0": {"sliding_window": 4}, "1": {"sliding_window": 6}}
    found = config_facts("m", config("gpt_oss", per_layer_config=sizes))
    assert "4, 6, 8 tokens" in found.facts["sliding_window"].source
    told = inputs_of(found, {}).inputs["sliding_window"].source
    assert "supply --sliding-window" in told
    assert inputs_of(found, amounts_of({"sliding_window": 8})).known["sliding_window"].value == 8


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt2", "gemma3n_text", "qwen3_moe", "gpt_oss", "qwen3_next"])
def test_weights_are_those_of_a_real_network(kind: str) -> None:
    network, found = network_of(kind), config_facts(kind, config(kind))
    total = sum(one.numel() for one in network.parameters())
    assert number(found, "parameters") == total
    inside = sum(one.numel() for name, one in network.named_parameters() if ".experts." in name)
    tied = network.get_input_embeddings() if network.config.tie_word_embeddings else None
    tables = [one for one in network.modules() if isinstance(one, torch.nn.Embedding) and one is not tied]
    embedding = sum(one.weight.numel() for one in tables)
    assert number(found, "resident_parameters") == total - inside
    assert number(found, "steady_parameters") == total - inside - embedding
    assert number(found, "active_parameters") == total - inside - embedding + inside // 4  # 2 of 8 experts
    head = network.get_output_embeddings().weight.numel()
    assert number(found, "reading_parameters") == total - inside - embedding + inside // 4 - head
    assert number(found, "weight_bits") == 16


def test_latent_attention_keeps_its_latent_and_rope() -> None:
    found = config_facts("deepseek", config("deepseek_v3"))
    assert number(found, "kv_elements") == 4 * (32 + 8)
    assert (number(found, "moe_layers"), number(found, "experts"), number(found, "experts_per_token")) == (3, 8, 2)
    assert number(found, "expert_bytes") == 3 * 64 * 16 * 2
    assert found.page_bits is None


def test_keys_and_values_of_different_sizes_are_both_counted() -> None:
    attention = torch.nn.Module()
    attention.k_proj, attention.v_proj = torch.nn.Linear(8, 48), torch.nn.Linear(8, 32)
    attention.layer_idx, attention.head_dim = 0, 24  # type: ignore[assignment]
    network = torch.nn.Module()
    network.layers, network.config = torch.nn.ModuleList([attention]), SimpleNamespace(num_hidden_layers=1)  # type: ignore[assignment]
    (kept,) = (layers_of(network) or {})[0]
    assert (kept.elements, kept.shape) == (80, None)


def test_pages_are_as_large_as_the_codec_makes_them() -> None:
    found = config_facts("qwen2", config("qwen2"))
    size = page_bytes("int8", PageShape(4, 2, 16, torch.bfloat16))
    assert found.page_bits == pytest.approx(8 * size / (64 * 2 * 4 * 2 * 16))
    assert config_facts("gemma", config("gemma3_text")).page_bits is None


def test_what_names_code_to_fetch_is_left_out() -> None:
    code = {
        "attn_implementation": "someone/kernels",
        "_attn_implementation": "someone/kernels",
        "auto_map": {"x": "y--z"},
    }
    assert config_facts("m", config("qwen2", **code)).facts == config_facts("m", config("qwen2")).facts


def test_a_type_that_nobody_knows_leaves_everything_unknown() -> None:
    found = config_facts("odd", {"model_type": "no_such_type", "num_hidden_layers": 4})
    assert {one.amount for one in found.facts.values()} == {None}
    assert all("no_such_type" in one.source for one in found.facts.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": "four"},
        {"hidden_size": -64},
        {"num_key_value_heads": 0},
        {"layer_types": ["x"] * 4},
        {"vocab_size": 1e400},
        {"num_hidden_layers": 10**9},
        {"vocab_size": 10**400},
        {"num_labels": 10**9},
        {"bos_token_id": [10**9]},
    ],
)
def test_a_config_that_makes_no_sense_raises_nothing(changes: dict[str, Any]) -> None:
    assert config_facts("odd", config("qwen2", **changes)).name == "odd"


def test_a_config_without_a_type_of_weights_does_not_guess_their_bits() -> None:
    found = config_facts("qwen3_moe", config("qwen3_moe", dtype=None))
    assert (number(found, "weight_bits"), number(found, "expert_bytes")) == (None, None)
    changed = with_bits(found, Amount(4.0, "bit/parameter"))
    assert (number(changed, "weight_bits"), number(changed, "expert_bytes")) == (4, 3 * 64 * 16 // 2)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe", "gemma3n_text", "gpt2"])
def test_bytes_in_files_are_exact(kind: str, tmp_path: Path) -> None:
    network = network_of(kind)
    network.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config(kind)))
    found = model_facts(str(tmp_path))
    stored = 2 * sum(one.numel() for one in network.parameters())
    bits, total = number(found, "weight_bits"), number(found, "parameters")
    assert bits is not None and total is not None and bits * total / 8 == pytest.approx(stored)
    assert number(found, "steady_bits") == pytest.approx(16)
    if kind == "qwen3_moe":
        assert number(found, "expert_bytes") == 3 * 64 * 16 * 2
    again = model_facts(str(tmp_path / "config.json"))
    assert again.facts["kv_elements"] == found.facts["kv_elements"]


def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(InputError, match="JSON"):
        model_facts(str(tmp_path / "config.json"))
    (tmp_path / "config.json").write_bytes(b" " * (1 << 21))
    with pytest.raises(InputError, match="at most"):
        model_facts(str(tmp_path / "config.json"))
    for name in ("no/such-model", "", "/etc", "a" * 300, "../x/y", "x\0y"):
        with pytest.raises(ModelNotFound):
            cached_facts(name)


@pytest.mark.parametrize(
    ("kind", "changes", "name"),
    [
        ("qwen2", {"max_position_embeddings": -5}, "native_context"),
        ("mistral", {"sliding_window": -3}, "sliding_window"),
        ("qwen3_moe", {"num_experts_per_tok": -2}, "experts_per_token"),
    ],
)
def test_what_cannot_be_is_unknown_and_the_rest_is_not(kind: str, changes: dict[str, Any], name: str) -> None:
    found = config_facts("odd", config(kind, **changes))
    assert found.facts[name].amount is None and "cannot be" in found.facts[name].source
    assert number(found, "parameters")


@pytest.mark.parametrize("kind", ["whisper", "bart"])
def test_of_a_model_with_an_encoder_no_half_is_counted(kind: str) -> None:
    found = config_facts("m", {"model_type": kind})
    assert {one.amount for one in found.facts.values()} == {None} and "encoder" in found.remarks[0]
