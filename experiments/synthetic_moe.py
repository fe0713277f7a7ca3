"""Checkpoints with the layer shapes of Qwen3-30B-A3B and random weights, written as a stream: never whole in memory.

The files look like those of save_pretrained: tensors sorted by name, an index beside the shards, one shard for each
layer and one for the rest. Knows safetensors' format; knows nothing of how it is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from tests.tiny import tiny_tokenizer


@dataclass(frozen=True, slots=True)
class MoeShape:
    """What is made. The defaults but n_layers are those of Qwen3-30B-A3B, which has 48.

    embedding_std: the larger it is beside what layers add to it, the more the next layer's choice can be foretold.
    """

    n_layers: int = 10
    n_experts: int = 128
    top_k: int = 8
    hidden: int = 2048
    expert_hidden: int = 768
    n_heads: int = 32
    n_kv_heads: int = 4
    head_dim: int = 128
    vocabulary: int = 151936
    embedding_std: float = 0.5

    @property
    def expert_bytes(self) -> int:
        """One expert in bf16."""
        return 3 * 2 * self.hidden * self.expert_hidden

    @property
    def experts_bytes(self) -> int:
        """All experts."""
        return self.n_layers * self.n_experts * self.expert_bytes

    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "dtype": "bfloat16",
            "eos_token_id": 1,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": 6144,
            "max_position_embeddings": 40960,
            "mlp_only_layers": [],
            "moe_intermediate_size": self.expert_hidden,
            "norm_topk_prob": True,
            "num_attention_heads": self.n_heads,
            "num_experts": self.n_experts,
            "num_experts_per_tok": self.top_k,
            "num_hidden_layers": self.n_layers,
            "num_key_value_heads": self.n_kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": False,
            "vocab_size": self.vocabulary,
        }

    def layer(self, number: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of one layer's tensors."""
        at, q, kv = f"model.layers.{number}.", self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {
            f"{at}input_layernorm.weight": (self.hidden,),
            f"{at}post_attention_layernorm.weight": (self.hidden,),
            f"{at}self_attn.q_norm.weight": (self.head_dim,),
            f"{at}self_attn.k_norm.weight": (self.head_dim,),
            f"{at}self_attn.q_proj.weight": (q, self.hidden),
            f"{at}self_attn.k_proj.weight": (kv, self.hidden),
            f"{at}self_attn.v_proj.weight": (kv, self.hidden),
            f"{at}self_attn.o_proj.weight": (self.hidden, q),
            f"{at}mlp.gate.weight": (self.n_experts, self.hidden),
        }
        for expert in range(self.n_experts):
            for part in ("gate_proj", "up_proj"):
                found[f"{at}mlp.experts.{expert}.{part}.weight"] = (self.expert_hidden, self.hidden)
            found[f"{at}mlp.experts.{expert}.down_proj.weight"] = (self.hidden, self.expert_hidden)
        return found

    def rest(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what belongs to no layer."""
        tokens = (self.vocabulary, self.hidden)
        return {"lm_head.weight": tokens, "model.embed_tokens.weight": tokens, "model.norm.weight": (self.hidden,)}


def make_checkpoint(folder: Path, shape: MoeShape, *, seed: int = 0, device: str = "cpu") -> Iterator[int]:
    """Write the folder; yields the bytes of each tensor as it is written. Memory: one tensor.

    device: where random numbers are drawn; each kind of device draws others.
    """
    folder.mkdir(parents=True)
    random = torch.Generator(device).manual_seed(seed)
    shards = [shape.rest(), *(shape.layer(number) for number in range(shape.n_layers))]
    where = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        where.update(dict.fromkeys(tensors, name))
        yield from _write_shard(folder / name, tensors, random, shape)
    total = sum(2 * prod(dimensions) for tensors in shards for dimensions in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1), "utf-8")
    tiny_tokenizer().save_pretrained(folder)
    settings = folder / "tokenizer_config.json"  # with a class that older versions of transformers know, too
    known = json.loads(settings.read_text("utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(known, indent=1), "utf-8")


def _write_shard(
    path: Path, tensors: dict[str, tuple[int, ...]], random: torch.Generator, shape: MoeShape
) -> Iterator[int]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors):
        size = 2 * prod(tensors[name])
        header[name] = {"dtype": "BF16", "shape": list(tensors[name]), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            dimensions = tensors[name]
            if len(dimensions) == 1:  # a norm
                values = 1 + 0.1 * torch.randn(dimensions, generator=random, device=random.device)
            else:
                std = shape.embedding_std if "embed" in name else dimensions[-1] ** -0.5
                values = std * torch.randn(dimensions, generator=random, device=random.device)
            yield file.write(values.to(torch.bfloat16).view(torch.uint8).cpu().numpy().data)
