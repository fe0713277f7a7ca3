"""A language model ready for use: the network, its tokenizer, and the facts that the rest of livingkv needs of it.

`load_model` finds, fetches, checks and loads; `from_network` takes a network that is already in memory. Both refuse,
with the reason, what has no growing rotary KV cache. Knows nothing of stores, sessions or recall.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from livingkv.codec import PageCodec
from livingkv.errors import InputError, UnsupportedModel
from livingkv.experts import StreamedModel, load_streamed
from livingkv.experts.plan import refuse_unstreamable
from livingkv.fingerprints import network_digest, tokenizer_digest, weights_digest
from livingkv.index import TokenEmbedder
from livingkv.model_fetch import Progress
from livingkv.model_loading import load_network, load_tokenizer, quiet, read_config, require_quantizer
from livingkv.model_probe import AttentionFacts, probe_attention
from livingkv.model_refusal import refuse_unsupported
from livingkv.model_rope import DualChunk, Rope, read_rope, rope_text
from livingkv.model_sources import ModelFolder, cache_folder, find_model
from livingkv.threads import use_threads

__all__ = ["DualChunk", "LoadedModel", "ModelShape", "Rope", "Weights", "from_network", "load_model"]

Weights = Literal["bf16", "fp32", "int8", "int4", "8bit", "4bit"]
DecodeWeights = Literal["int8", "int4"]
AskedDualChunk = DualChunk | Literal["off", "config"] | None
"""Rules that the caller wants, "off" for none, None for those of the model's config; "config": it must have some."""

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "</s>")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a network. `native_context` is the number of tokens that it was trained to tell apart."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    native_context: int


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A network in eval mode without gradients, its tokenizer, and what was read from them.

    spec: what `load_model` finds it by again, from any working directory.
    key_bias: per layer the bias that k_proj adds to every key before rotation, [n_kv_heads, head_dim]; None where there
    is none or where it does not reach the key unchanged (a norm follows).
    stop_ids: token ids that end an answer.
    model_digest, tokenizer_digest, rope_text, quantization ("none", "8bit", "4bit", or the method of weights that came
    packed): parts of a store's fingerprint.
    experts: what streams the network's experts; None where the network holds all of itself.
    embedders, codecs: what engines made of the input embeddings and for the shape, which takes a time: at most one
    embedder, and one codec of each name.
    decode_weights: generation reads weights of so many bits where it can (livingkv.packed); None: the network's own. No
    part of the fingerprint (docs/decisions/0029).
    """

    name: str
    spec: str
    network: Any
    tokenizer: Any
    shape: ModelShape
    rope: Rope
    dtype: torch.dtype
    device: torch.device
    key_bias: tuple[Tensor | None, ...]
    dual_chunk: DualChunk | None
    stop_ids: frozenset[int]
    model_digest: str
    tokenizer_digest: str
    rope_text: str
    quantization: str
    experts: StreamedModel | None = None
    decode_weights: DecodeWeights | None = None
    embedders: list[TokenEmbedder] = field(default_factory=list, repr=False)
    codecs: dict[str, PageCodec] = field(default_factory=dict, repr=False)

    def close(self) -> None:
        """Give back the files and the RAM of streamed experts; a network that holds all of itself has nothing to close.
        Twice is fine."""
        if self.experts is not None:
            self.experts.close()


def load_model(
    spec: str | Path | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    weights: Weights | None = None,
    dual_chunk: AskedDualChunk = None,
    experts_ram_bytes: int | None = None,
    experts_pack: str | Path = "auto",
    progress: Progress | None = None,
) -> LoadedModel:
    """Find a model, fetch it where needed, and load it. Blocks; the first time of a model may take minutes.

    spec: a local folder, a GGUF file, a hub id ("org/name") or a short name; None takes the environment's
    LIVINGKV_MODEL, else the default model. device: CUDA where there is one, else the CPU. weights: "bf16", "fp32",
    "int8" or "int4" (text is read in bf16, generation reads 8 or 4 bits; on a CPU, where "int8" is the default), or
    "8bit" and "4bit" through bitsandbytes (on the CPU only where `device` says so). dtype: of activations and KV, by
    default the weights'. dual_chunk: by default the config's, "off" for plain positions, "config": it must have some.
    experts_ram_bytes: experts of a mixture-of-experts model are streamed (livingkv.experts) within so much RAM, and
    computed as transformers' eager code does; what a store is told of the model is the same. `close` it in the end.
    experts_pack: where they are read from, as `load_streamed` has it.
    Raises ModelNotFound, ModelDamaged, UnsupportedModel or InputError: before any weights are fetched or converted
    where the arguments, the config or a GGUF file's metadata tell.
    """
    place, computed_in = device_of(device), dtype_of(weights, dtype)
    if weights in ("8bit", "4bit") and device is None and place.type != "cuda":
        raise InputError("weights", weights, "bf16, int8, int4 or fp32 is allowed without a CUDA device")
    if place.type == "cpu":
        use_threads()
    decode_weights = _decode_weights(weights, place, computed_in, streamed=experts_ram_bytes is not None)
    quantization = weights if weights in ("8bit", "4bit") else "none"
    if experts_ram_bytes is not None and quantization != "none":
        raise InputError("weights", weights, "bf16 or fp32 is allowed where experts are streamed")
    require_quantizer(quantization)

    def check(name: str, config: Any) -> None:
        _refuse(name, config, dual_chunk)
        if experts_ram_bytes is not None:
            refuse_unstreamable(name, config)

    source = find_model(spec, progress, check=check, streamed=experts_ram_bytes is not None)
    _refuse(source.name, read_config(source.folder), dual_chunk)
    if progress:
        progress("load", 0, 1)
    with ExitStack() as undo:
        experts = None
        if experts_ram_bytes is None:
            network = load_network(source.folder, dtype=computed_in, device=place, quantization=quantization)
        else:
            experts = undo.enter_context(
                load_streamed(
                    source.folder,
                    ram_bytes=experts_ram_bytes,
                    pack=experts_pack,
                    device=place,
                    dtype=computed_in,
                    attention="eager",
                )
            )
            network = experts.network
        loaded = _loaded(source, network, dual_chunk, quantization, experts)
        loaded = replace(loaded, decode_weights=decode_weights)
        undo.pop_all()
    if progress:
        progress("load", 1, 1)
    return loaded


def _refuse(name: str, config: Any, dual_chunk: AskedDualChunk) -> None:
    """Raise for a config that is unfit, or has no rules where some are asked of it."""
    refuse_unsupported(name, config)
    if dual_chunk == "config" and DualChunk.from_config(config) is None:
        allowed = f"{name} has no dual-chunk sizes in its config: leave it out, or give sizes"
        raise InputError("dual_chunk", "True", allowed)


def _decode_weights(
    weights: Weights | None, place: torch.device, dtype: torch.dtype, *, streamed: bool
) -> DecodeWeights | None:
    """What generation reads. Raises InputError where it is asked for and cannot be."""
    is_possible = place.type == "cpu" and dtype == torch.bfloat16 and not streamed
    if weights in ("int8", "int4") and not is_possible:
        allowed = "bf16, fp32, 8bit or 4bit" if place.type == "cuda" else "bf16 or fp32"
        raise InputError(
            "weights", weights, f"{allowed} is allowed here: packed weights are for a CPU and whole models"
        )
    if weights == "int4":
        return "int4"
    return "int8" if weights in (None, "int8") and is_possible else None


def _loaded(
    source: ModelFolder, network: Any, dual_chunk: AskedDualChunk, quantization: str, experts: StreamedModel | None
) -> LoadedModel:
    """A folder's network with its tokenizer. Digesting its weights takes a read of all of them, once."""
    tokenizer, cache = load_tokenizer(source.folder), cache_folder()
    return _described(
        network,
        tokenizer,
        name=source.name,
        dual_chunk=dual_chunk,
        quantization=quantization,
        model_digest=weights_digest(source.folder, cache),
        tokenizer_digest=tokenizer_digest(tokenizer, source.folder, cache),
        spec=source.spec,
        experts=experts,
    )


def from_network(
    network: Any,
    tokenizer: Any,
    *,
    name: str = "network",
    dual_chunk: AskedDualChunk = None,
    quantization: str = "none",
) -> LoadedModel:
    """A `LoadedModel` of a network that is in memory already. Puts it in eval mode and switches gradients off.

    Raises UnsupportedModel as `load_model` does. The model digest is of the tensors in memory.
    """
    _refuse(name, network.config, dual_chunk)
    _require_onedevice_of(name, network)
    digests = network_digest(network), tokenizer_digest(tokenizer)
    return _described(
        network,
        tokenizer,
        name=name,
        dual_chunk=dual_chunk,
        quantization=quantization,
        model_digest=digests[0],
        tokenizer_digest=digests[1],
    )


def _described(
    network: Any,
    tokenizer: Any,
    *,
    name: str,
    dual_chunk: AskedDualChunk,
    quantization: str,
    model_digest: str,
    tokenizer_digest: str,
    spec: str | None = None,
    experts: StreamedModel | None = None,
) -> LoadedModel:
    network.eval().requires_grad_(False)
    config = network.config
    own_chunk = DualChunk.from_config(config)
    rules = _dual_chunk(dual_chunk, own_chunk)
    native = own_chunk.original_context if own_chunk else int(config.max_position_embeddings)
    rope, facts = _probed(network, name, native)
    if len(tokenizer) > config.vocab_size:
        raise UnsupportedModel(f"{name}: its tokenizer has {len(tokenizer)} tokens, its network {config.vocab_size}")
    sizes = facts.n_layers, facts.n_heads, facts.n_kv_heads, facts.head_dim, int(config.vocab_size)
    return LoadedModel(
        name=name,
        spec=name if spec is None else spec,
        network=network,
        tokenizer=tokenizer,
        shape=ModelShape(*sizes, native_context=native),
        rope=rope,
        dtype=network.dtype,
        device=network.device,
        key_bias=facts.key_bias,
        dual_chunk=rules,
        stop_ids=stop_ids_of(network, tokenizer),
        model_digest=model_digest,
        tokenizer_digest=tokenizer_digest,
        rope_text=rope_text(config, rope, rules),
        quantization=quantization if quantization != "none" else _own_quantization(config),
        experts=experts,
    )


def _dual_chunk(asked: AskedDualChunk, own: DualChunk | None) -> DualChunk | None:
    if asked == "off":
        return None
    if asked is None or asked == "config":
        return own
    if not isinstance(asked, DualChunk):
        raise InputError("dual_chunk", repr(asked), 'a DualChunk, "off", "config" or None is allowed')
    return asked


def _require_onedevice_of(name: str, network: Any) -> None:
    """Raise UnsupportedModel for weights that are spread over devices, or of which this process has only a part."""
    tensors = [*network.parameters(), *network.buffers()]
    places = sorted({str(tensor.device) for tensor in tensors})
    if len(places) > 1:
        spread = f"its weights are spread over {', '.join(places)}"
    elif any(hasattr(tensor, "device_mesh") for tensor in tensors) or (getattr(network, "_tp_size", None) or 1) > 1:
        spread = "each process has only its share of the heads (tensor parallel)"
    else:
        return
    raise UnsupportedModel(f"{name} cannot be used: {spread}; load all of it onto one device")


def _probed(network: Any, name: str, native_context: int) -> tuple[Rope, AttentionFacts]:
    try:
        rope = read_rope(getattr(network.base_model, "rotary_emb", None))
        with quiet():
            return rope, probe_attention(network, rope, max_window=native_context)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{name} ({network.config.model_type}) cannot be used: {error}") from error


def _own_quantization(config: Any) -> str:
    """The method of weights that came packed (GPTQ, AWQ, ...), "none" for plain ones."""
    packing = getattr(config, "quantization_config", None)
    if packing is None:
        return "none"
    method = packing.get("quant_method") if isinstance(packing, dict) else getattr(packing, "quant_method", None)
    return str(getattr(method, "value", method or "unknown"))


def stop_ids_of(network: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that the config, the generation config or the tokenizer calls an end, and well-known ends of a turn."""
    vocabulary: Mapping[str, int] = tokenizer.get_added_vocab()
    ids = {vocabulary[token] for token in _TURN_ENDS if token in vocabulary}
    ends = [network.config.eos_token_id, getattr(network.generation_config, "eos_token_id", None)]
    for end in [*ends, tokenizer.eos_token_id]:
        ids.update(end if isinstance(end, list | tuple) else () if end is None else (end,))
    return frozenset(int(index) for index in ids)


def device_of(device: str | torch.device | None) -> torch.device:
    """CUDA where there is one and nothing is asked for, else what is asked for. Raises InputError."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError("device", repr(device), "cpu, cuda or cuda:N is allowed") from error
    if chosen.type == "cuda" and not (chosen.index or 0) < torch.cuda.device_count():
        raise InputError("device", device, f"this machine has {torch.cuda.device_count()} CUDA devices; cpu is allowed")
    return chosen


def dtype_of(weights: Weights | None, dtype: torch.dtype | None) -> torch.dtype:
    """What activations are computed in, bf16 where nothing is asked for. Raises InputError."""
    if weights not in (None, *get_args(Weights)):
        raise InputError("weights", repr(weights), f"one of {', '.join(get_args(Weights))} is allowed")
    if dtype not in (None, torch.bfloat16, torch.float16, torch.float32):
        raise InputError("dtype", dtype, "torch.bfloat16, torch.float16 or torch.float32 is allowed")
    named = {"fp32": torch.float32, **dict.fromkeys(("bf16", "int8", "int4"), torch.bfloat16)}.get(weights or "")
    if named and dtype and named != dtype:
        raise InputError("dtype", dtype, f"{named} is what weights={weights!r} has; give one of the two")
    return dtype or named or torch.bfloat16
