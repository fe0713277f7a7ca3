"""Which models livingkv refuses from their config alone, before a byte of weights is fetched or loaded, and why.

A model is fit when every layer keeps a growing KV cache of full causal attention with one set of rotary frequencies.
What a config does not tell is found out on the network itself (model_probe.py). Knows nothing of loading.
"""

from __future__ import annotations

from typing import Any

from livingkv.errors import UnsupportedModel
from livingkv.model_rope import rope_parameters

_RECURRENT_LAYERS = ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "hybrid", "hybrid_sliding")
_MULTIMODAL_PARTS = ("vision", "audio", "text", "image", "speech", "vq", "depth")
_RECURRENT = "keep a recurrent state instead of a growing KV cache"


def refuse_unsupported(name: str, config: Any) -> None:
    """Return when the Hugging Face config describes a model that may be fit; else raise UnsupportedModel.

    The message reads "NAME (model type) cannot be used: reason".
    """
    kind = getattr(config, "model_type", "unknown")
    try:
        if getattr(config, "is_heterogeneous", False):
            raise UnsupportedModel("its layers differ from each other (per_layer_config)")
        _check_decoder(config)
        _check_layers(config)
        _check_attention(config)
        rope_parameters(config)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{name} ({kind}) cannot be used: {error}") from None


def _check_decoder(config: Any) -> None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel("it is an encoder-decoder; livingkv needs a decoder alone")
    for part in getattr(config, "sub_configs", None) or {}:
        if part.startswith(_MULTIMODAL_PARTS):
            raise UnsupportedModel(f"it is a multimodal wrapper ({part}); give a text model")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel("it is not a text-generation model that the installed transformers knows")
    network_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    layer_types = set(getattr(config, "layer_types", None) or ())
    if "full_attention" in layer_types and layer_types & set(_RECURRENT_LAYERS):
        raise UnsupportedModel(f"it is a hybrid: some of its layers {_RECURRENT}")
    if getattr(network_class, "_is_stateful", False) or layer_types & set(_RECURRENT_LAYERS):
        raise UnsupportedModel(f"its layers {_RECURRENT}")
    if getattr(config, "add_cross_attention", False) or getattr(config, "cross_attention_layers", None):
        raise UnsupportedModel("it has cross-attention")


def _check_layers(config: Any) -> None:
    layer_types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    slides = "sliding_attention" in layer_types if layer_types else getattr(config, "use_sliding_window", True)
    if slides and window and window < getattr(config, "max_position_embeddings", window + 1):
        raise UnsupportedModel(f"some of its layers attend only a sliding window of {window} tokens")
    if getattr(config, "attention_chunk_size", None) and "chunked_attention" in (layer_types or ("chunked_attention",)):
        raise UnsupportedModel(f"some of its layers attend only chunks of {config.attention_chunk_size} tokens")
    unknown = sorted(set(layer_types or ()) - {"full_attention", "sliding_attention"})
    if unknown:
        raise UnsupportedModel(f"some of its layers are of type {', '.join(unknown)}, not full attention")


def _check_attention(config: Any) -> None:
    if getattr(config, "kv_lora_rank", None):
        raise UnsupportedModel("it caches a latent (MLA, kv_lora_rank) instead of keys and values")
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        raise UnsupportedModel("it uses ALiBi instead of rotary positions")
    if getattr(config, "attn_logit_softcapping", None):
        raise UnsupportedModel("it caps its attention logits (attn_logit_softcapping)")
    if not all(getattr(config, "no_rope_layers", None) or (1,)):
        raise UnsupportedModel("some of its layers have no positions (no_rope_layers)")
    if getattr(config, "use_bidirectional_attention", False) or getattr(config, "is_causal", True) is False:
        raise UnsupportedModel("its attention is not causal")
    if not getattr(config, "rope_parameters", None):
        if getattr(config, "rotary_dim", None):
            raise UnsupportedModel("its rotary positions are not in the half-split layout")
        raise UnsupportedModel("it has no rotary positions (learned, fixed or none)")
