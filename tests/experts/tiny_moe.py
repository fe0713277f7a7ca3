"""Tiny random mixture-of-experts checkpoints of eight architectures, and their plain eager networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from livingkv.model_loading import quiet

N_EXPERTS = 8
TOP_K = 2

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 16,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "num_experts": N_EXPERTS,
    "num_experts_per_tok": TOP_K,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_LINEAR: dict[str, Any] = {
    "shared_expert_intermediate_size": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {},
    "qwen2_moe": {"shared_expert_intermediate_size": 16},
    "olmoe": {"head_dim": None},
    "mixtral": {"num_experts": None, "num_local_experts": N_EXPERTS},
    "gpt_oss": {
        "num_experts": None,
        "num_local_experts": N_EXPERTS,
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "qwen3_next": {**_LINEAR, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "qwen4_exp_text": {
        **_LINEAR,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "hc_count": 2,
        "hc_lowrank": 8,
        "ple_layer_ids": [1],
        "ple_embed_dim": 32,
        "ngram_size": 3,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 4,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "deepseek_v4": {
        "num_experts": None,
        "n_routed_experts": N_EXPERTS,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "q_lora_rank": 16,
        "o_groups": 2,
        "o_lora_rank": 8,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "index_topk": 4,
        "hc_mult": 2,
        "sliding_window": 16,
        "intermediate_size": None,
        "partial_rotary_factor": 0.5,
        "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
    },
}


def make_checkpoint(family: str, folder: Path, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Save a random model of the family as transformers saves it, and answer the folder."""
    values = {name: value for name, value in (_COMMON | FAMILIES[family] | changes).items() if value is not None}
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(7)
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **values), dtype=dtype)
        for name, tensor in network.named_buffers():
            if name.endswith("tid2eid"):  # random routes, some of which choose an expert twice
                tensor.copy_(torch.randint(0, N_EXPERTS, tensor.shape))
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.2)
        network.save_pretrained(folder)
    return folder


def plain_network(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The network as transformers loads it, with its eager experts: the reference."""
    with quiet():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, experts_implementation="eager").eval()
