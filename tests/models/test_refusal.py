"""Models that must be refused from their config alone, each with its reason, and models that must not be."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from livingkv.errors import UnsupportedModel
from livingkv.model_refusal import refuse_unsupported
from livingkv.model_rope import DualChunk
from tests.tiny import FAMILIES, tiny_config

RECURRENT = "keep a recurrent state instead of a growing KV cache"

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mamba", {}, RECURRENT),
    ("mamba2", {}, RECURRENT),
    ("falcon_mamba", {}, RECURRENT),
    ("rwkv", {}, RECURRENT),
    ("xlstm", {}, RECURRENT),
    ("recurrent_gemma", {}, RECURRENT),
    ("jamba", {}, "hybrid"),
    ("bamba", {}, RECURRENT),
    ("zamba2", {}, RECURRENT),
    ("falcon_h1", {}, RECURRENT),
    ("nemotron_h", {}, "hybrid"),
    ("qwen3_next", {}, "hybrid"),
    ("minimax", {}, "hybrid"),
    ("lfm2", {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}, "hybrid"),
    ("mistral", {"sliding_window": 4096, "max_position_embeddings": 32768}, "sliding window of 4096 tokens"),
    ("phi3", {"sliding_window": 2047, "max_position_embeddings": 4096}, "sliding window of 2047 tokens"),
    ("starcoder2", {"sliding_window": 4096, "max_position_embeddings": 16384}, "sliding window of 4096 tokens"),
    ("gemma2", {}, "sliding window"),
    ("gemma3_text", {}, "sliding window"),
    ("cohere2", {}, "sliding window"),
    ("gpt_oss", {}, "sliding window of 128 tokens"),
    (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 2, "num_hidden_layers": 4},
        "sliding window of 4096 tokens",
    ),
    ("llama4_text", {}, "chunks of 8192 tokens"),
    ("deepseek_v3", {}, "MLA"),
    ("deepseek_v2", {}, "MLA"),
    ("minicpm3", {}, "MLA"),
    ("gpt2", {}, "no rotary positions"),
    ("opt", {}, "no rotary positions"),
    ("gpt_neo", {}, "no rotary positions"),
    ("bloom", {}, "ALiBi"),
    ("mpt", {}, "ALiBi"),
    ("falcon", {"alibi": True}, "ALiBi"),
    ("gptj", {}, "not in the half-split layout"),
    ("codegen", {}, "not in the half-split layout"),
    ("t5", {}, "encoder-decoder"),
    ("bart", {}, "encoder-decoder"),
    ("whisper", {}, "encoder-decoder"),
    ("gemma3", {}, "multimodal wrapper"),
    ("qwen2_vl", {}, "multimodal wrapper"),
    ("llava", {}, "multimodal wrapper"),
    ("mllama", {}, "multimodal wrapper"),
    ("smollm3", {}, "no positions (no_rope_layers)"),
    ("vit", {}, "not a text-generation model"),
    ("bert", {}, "no rotary positions"),
    ("ministral3", {}, "scales queries by their position"),
    ("olmo3", {}, "rotary frequencies differ"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "change with the length of the text",
    ),
    (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 48,
                "long_factor": [2.0] * 48,
                "original_max_position_embeddings": 4096,
            }
        },
        "change with the length of the text",
    ),
]


@pytest.mark.parametrize(("kind", "changes", "reason"), REFUSED, ids=[f"{case[0]}-{case[2][:12]}" for case in REFUSED])
def test_refused_with_the_reason(kind: str, changes: dict[str, Any], reason: str) -> None:
    config = AutoConfig.for_model(kind, **changes)
    with pytest.raises(UnsupportedModel) as caught:
        refuse_unsupported("some/name", config)
    message = str(caught.value)
    assert message.startswith(f"some/name ({config.model_type}) cannot be used: ")
    assert reason in message
    assert "\n" not in message


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILIES),
    ("mistral", {"sliding_window": 32768, "max_position_embeddings": 32768}),
    ("mixtral", {}),
    ("qwen2_moe", {}),
    ("qwen3_moe", {}),
    ("phi3", {}),
    ("olmo2", {}),
    ("granite", {}),
    ("glm4", {}),
    ("cohere", {}),
    ("qwen2", {"use_sliding_window": False, "sliding_window": 4096}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    ("qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}),
]


@pytest.mark.parametrize(("kind", "changes"), ACCEPTED, ids=[case[0] for case in ACCEPTED])
def test_not_refused_from_the_config(kind: str, changes: dict[str, Any]) -> None:
    config = tiny_config(kind) if kind in FAMILIES and not changes else AutoConfig.for_model(kind, **changes)
    refuse_unsupported("some/name", config)


def test_the_config_of_qwen_1m_is_accepted_and_read() -> None:
    sparse = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    config = AutoConfig.for_model("qwen2", max_position_embeddings=1010000, dual_chunk_attention_config=sparse)
    refuse_unsupported("qwen2.5-7b-1m", config)
    assert DualChunk.from_config(config) == DualChunk(262144, 8192, 262144)
