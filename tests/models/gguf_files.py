"""Tiny GGUF files for tests, written with the gguf library from the tiny networks and their tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from torch import Tensor

from tests.tiny import NATIVE_CONTEXT, tiny_network, tiny_tokenizer

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    family: str = "qwen2",
    *,
    architecture: str | None = None,
    fields: dict[str, Any] | None = None,
    tensors: dict[str, Tensor] | None = None,
    leave_out: str | None = None,
    tie: bool = False,
    q8: bool = False,
) -> Any:
    """Write the tiny network of that family as a GGUF file and return it. `fields` and `tensors` are added to it."""
    network = tiny_network(family, tie_word_embeddings=tie)
    architecture = architecture or family
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(network.config.num_hidden_layers)
    writer.add_context_length(NATIVE_CONTEXT)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(network.config.rms_norm_eps)
    add_tokenizer(writer)
    for key, value in (fields or {}).items():
        add_field(writer, key, value)
    for name, tensor in network.state_dict().items():
        gguf_name = name_in_gguf(name)
        if gguf_name != leave_out and not (tie and gguf_name == "output.weight"):
            add_tensor(writer, gguf_name, to_gguf(family, name, tensor), q8=q8 and tensor.ndim == 2)
    for name, tensor in (tensors or {}).items():
        add_tensor(writer, name, tensor, q8=False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return network


def add_tokenizer(writer: GGUFWriter) -> None:
    """The tiny tokenizer as GGUF keeps it: tokens by id, their types, merges, special ids, template."""
    tokenizer = tiny_tokenizer()
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = set(tokenizer.get_added_vocab())
    pieces = [piece for piece, _ in vocabulary]
    pieces += [f"[unused{n}]" for n in range(len(pieces), 304)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(pieces)
    writer.add_token_types([3 if piece in special else 5 if piece.startswith("[unused") else 1 for piece in pieces])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(str(tokenizer.chat_template))


def add_field(writer: GGUFWriter, key: str, value: object) -> None:
    """One metadata value of a type that GGUF knows."""
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        raise TypeError(f"{key}: {value!r}")


def add_tensor(writer: GGUFWriter, name: str, tensor: Tensor, *, q8: bool) -> None:
    """One tensor, as fp32 or in blocks of 8 bits."""
    array = np.ascontiguousarray(tensor.float().numpy())
    if q8:
        packed = quantize(array, GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType.Q8_0)
    else:
        writer.add_tensor(name, array)


def name_in_gguf(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, number, inner = stem.split(".", 3)
        return f"blk.{number}.{NAMES[inner]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def to_gguf(family: str, name: str, tensor: Tensor) -> Tensor:
    """GGUF of the llama family keeps queries and keys in the interleaved layout of rotary positions."""
    if family != "llama" or not name.endswith(("q_proj.weight", "k_proj.weight")):
        return tensor
    n_heads = tensor.shape[0] // 16
    return tensor.view(n_heads, 2, 8, 64).transpose(1, 2).reshape(tensor.shape)


def llama3_factors(factor: float) -> Tensor:
    """The rope_freqs tensor of a llama3-scaled model with theta 10,000, head_dim 16 and 8,192 original positions."""
    frequencies = 1.0 / 10000.0 ** (torch.arange(8, dtype=torch.float) / 8)
    wavelengths = 2 * torch.pi / frequencies
    smooth = ((8192 / wavelengths - 1) / 3).clamp(0, 1)
    return 1 / ((1 - smooth) / factor + smooth)
