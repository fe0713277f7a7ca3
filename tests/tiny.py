"""Tiny random models for tests: real architectures, 3 layers, a byte-level tokenizer, no download, no knowledge.

`tiny_model("qwen2")` is a `LoadedModel`. The same family and seed give the same weights on every machine of one torch
version. Key biases are large (as in Qwen2.5), so that a path which forgets the bias is seen at once.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from livingkv.models import AskedDualChunk, LoadedModel, from_network

FAMILIES = ("qwen2", "llama", "mistral", "qwen3")
N_LAYERS = 3
NATIVE_CONTEXT = 2048
VOCAB_SIZE = 304

_MERGES = (
    *("Ġ t", "h e", "Ġt he", "i n", "Ġ a", "r e", "o n", "e r", "Ġ s", "a t", "n d", "Ġa nd", "o r", "e n", "Ġ o"),
    *("Ġ w", "i s", "e s", "Ġ c", "in g", "Ġo f", "e d", "Ġ p", "Ġ i", "Ġi n", "a l", "Ġ is", "l l", "o u", "a r"),
    *("Ġ re", "i t", "Ġt o", "Ġ Ġ", "ĠĠ ĠĠ", "i on", "Ċ Ċ", "r o", "a n", "l e"),
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes, 40 merges, 3 special tokens and a ChatML template. Any text survives a round trip."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in _MERGES]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in _MERGES)]
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in _SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def tiny_config(family: str, **changes: Any) -> Any:
    """The Hugging Face config of a tiny model: 3 layers, 4 heads, 2 KV heads, head_dim 16, native context 2,048."""
    tokenizer = tiny_tokenizer()
    values: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": NATIVE_CONTEXT,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "initializer_range": 0.15,
        "tie_word_embeddings": family != "llama",
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if family == "mistral":
        values["sliding_window"] = None
    return AutoConfig.for_model(family, **(values | changes))


def tiny_network(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A random `*ForCausalLM` in eval mode; `changes` go to the config. Leaves torch's global generator as it was."""
    config = tiny_config(family, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        for name, parameter in network.named_parameters():
            if name.endswith("k_proj.bias"):
                torch.nn.init.normal_(parameter, std=5.0)
            elif name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.5)
    network = network.eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.data = parameter.data.to(dtype)
    return network


def tiny_model(
    family: str = "qwen2",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    dual_chunk: AskedDualChunk = None,
    **changes: Any,
) -> LoadedModel:
    """A `LoadedModel` of a tiny random network, on the CPU. `changes` go to the config."""
    network = tiny_network(family, seed=seed, dtype=dtype, **changes)
    return from_network(network, tiny_tokenizer(), name=f"tiny-{family}-{seed}", dual_chunk=dual_chunk)
