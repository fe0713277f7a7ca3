"""Configs of tiny models of many kinds, made-up model facts, and situations, for tests of the planner."""

from __future__ import annotations

from typing import Any

from livingkv.planner.fact import ModelFacts, facts_of
from livingkv.planner.inputs import Inputs, Stamp, inputs_of
from livingkv.planner.options import amounts_of
from livingkv.planner.plan import Json, plan_of

_BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "dtype": "bfloat16",
}
_SLIDING = ["sliding_attention"] * 3 + ["full_attention"]
_SHARED = {
    "sliding_window": 8,
    "layer_types": _SLIDING * 2,
    "num_kv_shared_layers": 4,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 64,
}
_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_CHANGES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "llama": {"tie_word_embeddings": True},
    "phi3": {"head_dim": None, "pad_token_id": 0},
    "gpt2": {
        "n_embd": 64,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 256,
        "num_key_value_heads": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "mistral": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8, "layer_types": _SLIDING},
    "gemma3n_text": {
        **_SHARED,
        "num_hidden_layers": 8,
        "altup_num_inputs": 2,
        "laurel_rank": 4,
        "intermediate_size": [96] * 8,
        "activation_sparsity_pattern": [0.0] * 8,
    },
    "gemma4_text": {**_SHARED, "num_hidden_layers": 8, "global_head_dim": 32},
    "gpt_oss": {"sliding_window": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "layer_types": _SLIDING},
    "qwen3_moe": {**_MOE},
    "qwen3_next": {
        **_MOE,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 16,
        "shared_expert_intermediate_size": 16,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "head_dim": None,
        "kv_lora_rank": 32,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2},
    "mamba": {"state_size": 16, "expand": 2},
}


def config(kind: str, **changes: Any) -> dict[str, Any]:
    """A config.json. `changes` of None leave a field out."""
    values = {**_BASE, **_CHANGES[kind], **changes, "model_type": kind}
    return {name: value for name, value in values.items() if value is not None}


def made_up(*, page_bits: float | None = None, kind: str = "qwen2", **values: float) -> ModelFacts:
    """A dense model with 8 billion weights in 16 bits and 48 layers of 4 KV heads, but for `values`."""
    plain = {
        "parameters": 8e9,
        "active_parameters": 7e9,
        "resident_parameters": 8e9,
        "steady_parameters": 7e9,
        "reading_parameters": 6.5e9,
        "weight_bits": 16.0,
        "resident_bits": 16.0,
        "steady_bits": 16.0,
        "kv_elements": 2.0 * 48 * 4 * 128,
        "bounded_elements": 0.0,
        "sliding_window": 0.0,
        "wider_elements": 0.0,
        "wider_window": 0.0,
        "state_bytes": 0.0,
        "native_context": 32768.0,
        "moe_layers": 0.0,
        "experts": 0.0,
        "experts_per_token": 0.0,
        "expert_bytes": 0.0,
    }
    return ModelFacts("made-up", kind, facts_of({**plain, **values}, "made up"), page_bits)


MOE: dict[str, Any] = {
    "moe_layers": 58.0,
    "experts": 256.0,
    "experts_per_token": 8.0,
    "expert_bytes": 9719808.0,
    "resident_parameters": 2e9,
}
SITUATION: dict[str, str | float | bool] = {
    "context": "64k",
    "vram": "24GiB",
    "ram": "64GiB",
    "disk": "1TB",
    "bw_vram": "900GB/s",
    "bw_ram": "60GB/s",
    "bw_pcie": "25GB/s",
    "bw_disk": "5GB/s",
    "flops_device": "100Tflop/s",
    "flops_cpu": "1Tflop/s",
}
STAMP = Stamp("2026-11-30", "DE", "a shop", "EUR")


def inputs(model: ModelFacts | None = None, **given: str | float | bool) -> Inputs:
    """Of a situation with everything that a machine has, and `given`."""
    return inputs_of(model or made_up(), amounts_of({**SITUATION, **given}), None, STAMP)


def planned(model: ModelFacts | None = None, **given: str | float | bool) -> Json:
    """The plan of it."""
    return plan_of(inputs(model, **given))


def value(document: Json, law: str) -> Any:
    """Of one calculation."""
    return next(one["value"] for one in document["calculations"] if one["law"] == law)


def verdict(document: Json, path: str) -> Json:
    """Of one path."""
    found: Json = next(one for one in document["verdicts"] if one["path"] == path)
    return found
