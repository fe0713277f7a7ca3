"""`load_streamed`: a mixture-of-experts model whose experts stay in the files of its checkpoint.

The door of this package: it puts index, source, arena, stage and network together. Nothing is written, no checkpoint is
converted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from livingkv.errors import InputError, LivingKVError, ModelDamaged, ModelError, UnsupportedModel
from livingkv.experts.arena import RowArena
from livingkv.experts.checkpoint import Checkpoint, read_checkpoint
from livingkv.experts.counts import StreamCounts
from livingkv.experts.eviction import Eviction, LeastRecent, StableSubset
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.formats import Format, PlainFormat, format_of
from livingkv.experts.index import ExpertIndex, build_index
from livingkv.experts.layout import rounded
from livingkv.experts.lazy_weights import lazy_weights
from livingkv.experts.names import expert_tensors
from livingkv.experts.plugging import NAME, plug_in, register, without_experts
from livingkv.experts.pread_source import N_THREADS, PIECE_BYTES, PreadSource
from livingkv.experts.skeleton import ExpertModule, causal_class, expert_modules, skeleton
from livingkv.experts.source import Source
from livingkv.experts.stage import DeviceStage, HostStage, Stage
from livingkv.experts.stream import ExpertStream
from livingkv.model_loading import first_line, has_tokenizer, load_tokenizer, quiet, read_config

LOG = logging.getLogger("livingkv.experts")

FORMATS: tuple[Format, ...] = (PlainFormat(),)
N_DEVICE_BUFFERS = 4
_LOAD_ERRORS = (OSError, ValueError, RuntimeError, TypeError, AttributeError, KeyError, ImportError)

SourceOf = Callable[[ExpertIndex], Source]
"""Makes the source of an index."""


@dataclass(frozen=True, slots=True)
class StreamedModel:
    """A network that `generate` and `forward` of transformers work on, and what streams its experts.

    Used by one thread at a time. tokenizer is None where the folder has none. close() ends it: a pass raises then.
    """

    network: Any
    tokenizer: Any
    index: ExpertIndex
    stream: ExpertStream

    @property
    def arena(self) -> RowArena:
        """The experts in RAM."""
        return self.stream.arena

    def counts(self) -> StreamCounts:
        """What was used, read and waited for since the model was loaded."""
        return self.stream.counts()

    def check(self) -> list[str]:
        """What is wrong with the experts in RAM: nothing, unless there is a bug."""
        return self.stream.arena.check()

    def close(self) -> None:
        """Wait for reads under way; give back files and RAM. Once is enough, twice is fine."""
        self.stream.close()

    def __enter__(self) -> StreamedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_streamed(
    path: str | Path,
    *,
    ram_bytes: int,
    source: Literal["direct", "buffered"] | SourceOf = "direct",
    n_threads: int = N_THREADS,
    piece_bytes: int = PIECE_BYTES,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    attention: str | None = None,
    formats: tuple[Format, ...] = FORMATS,
) -> StreamedModel:
    """Load a model folder without its experts; they are read when tokens need them.

    ram_bytes: for experts and for the buffers of the source, on top of the rest of the network; a hard limit.
    source: files past the page cache, files through it, or what makes another Source; n_threads and piece_bytes are
    for the first two. dtype: None as in the config. attention: an attn_implementation of transformers.
    Blocks for as long as the rest of the network takes to be read. Raises ModelNotFound, ModelDamaged,
    UnsupportedModel, and InputError where not even one expert fits in ram_bytes.
    """
    folder, device = Path(path), torch.device(device)
    outer = read_config(folder)
    if getattr(outer, "quantization_config", None) is not None:
        raise UnsupportedModel(f"{folder}: its weights are quantized, and streaming knows none of that yet")
    found, config = causal_class(outer)
    checkpoint = read_checkpoint(folder)
    dtype = dtype or config.dtype or outer.dtype or torch.get_default_dtype()
    bare = skeleton(found, config, dtype)
    modules = expert_modules(bare)
    tensors = expert_tensors(checkpoint.tensors, bare, modules)
    index = build_index(checkpoint, modules, tensors, for_device=device.type != "cpu")
    forms = tuple(format_of(layer, module, formats) for layer, module in zip(index.layers, modules, strict=True))
    network = _load_network(folder, found, config, checkpoint, set(tensors), dtype, device, attention)
    forms = _fitted(network, modules, forms, device)
    made = _source(source, index, n_threads, piece_bytes)
    try:
        arena = _arena(index, config, ram_bytes - made.buffer_bytes, device)
        stream = ExpertStream(index, made, arena, _stage(index, arena, device), forms)
    except BaseException:
        made.close()
        raise
    plug_in(network, [module.name for module in modules], stream)
    tokenizer = load_tokenizer(folder) if has_tokenizer(folder) else None
    return StreamedModel(network, tokenizer, index, stream)


def _load_network(
    folder: Path,
    found: type,
    config: Any,
    checkpoint: Checkpoint,
    experts: set[str],
    dtype: torch.dtype,
    device: torch.device,
    attention: str | None,
) -> Any:
    from transformers import GenerationConfig

    register()
    files = CheckpointFiles(checkpoint, direct=False)
    options: dict[str, Any] = {} if device.type == "cpu" else {"device_map": {"": device}}
    if attention is not None:
        options["attn_implementation"] = attention
    try:
        with quiet():
            network, info = without_experts(found).from_pretrained(  # type: ignore[attr-defined]
                None,
                config=config,
                state_dict=lazy_weights(checkpoint, files, experts),
                dtype=dtype,
                experts_implementation=NAME,
                output_loading_info=True,
                **options,
            )
            if (folder / "generation_config.json").is_file():
                network.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except LivingKVError:
        raise
    except torch.cuda.OutOfMemoryError as error:
        raise ModelError(f"{folder}: what is not experts does not fit on {device}; try the CPU") from error
    except _LOAD_ERRORS as error:
        raise ModelDamaged(f"{folder}: its weights cannot be loaded ({first_line(error)})") from error
    finally:
        files.close()
    lacking = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if lacking:
        raise ModelDamaged(f"{folder}: {len(lacking)} tensors are missing or misshapen, the first is {lacking[0]}")
    return network.requires_grad_(False)


def _fitted(
    network: Any, modules: list[ExpertModule], forms: tuple[Format, ...], device: torch.device
) -> tuple[Format, ...]:
    """Every layer's format for its experts module; layers of one kind share it."""
    known: dict[tuple[object, ...], Format] = {}
    found = []
    for module, form in zip(modules, forms, strict=True):
        live = network.get_submodule(module.name)
        kind = (type(live), form, tuple(sorted(module.parameters.items())))
        if kind not in known:
            with torch.no_grad():
                known[kind] = form.fitted(live, module.parameters, device)
        found.append(known[kind])
    return tuple(found)


def _source(source: str | SourceOf, index: ExpertIndex, n_threads: int, piece_bytes: int) -> Source:
    if callable(source):
        return source(index)
    if source not in ("direct", "buffered"):
        raise InputError("source", source, "direct and buffered are allowed, or a callable")
    files = CheckpointFiles(index.checkpoint, direct=source == "direct")
    try:
        return PreadSource(index, files, n_threads, min(piece_bytes, index.row_bytes))
    except BaseException:
        files.close()
        raise


def _arena(index: ExpertIndex, config: Any, budget_bytes: int, device: torch.device) -> RowArena:
    n_experts = sum(layer.n_experts for layer in index.layers)
    n_rows = min(n_experts, budget_bytes // index.row_bytes)
    if n_rows < 1:
        least = index.row_bytes
        raise InputError("ram_bytes", f"{budget_bytes} after buffers", f"one expert takes {least}: give more")
    lap = len(index.layers) * _experts_per_token(config, index)

    def rule(n_kept: int) -> Eviction:
        if n_kept >= min(lap, n_experts):
            return LeastRecent(len(index.layers), n_kept)
        LOG.warning(
            "one token needs %d experts (%.2f GB) and %d can be kept: the same few stay in RAM, the rest is read for "
            "every token; %.2f GB of RAM would hold what a token needs",
            *(lap, lap * index.row_bytes / 1e9, n_kept, rounded(lap + 4, 1) * index.row_bytes / 1e9),
        )
        return StableSubset()

    register_memory = None
    if device.type == "cuda":
        from livingkv.tiers.pinning import pin_for_cuda

        register_memory = pin_for_cuda
    return RowArena(n_rows, index.row_bytes, n_needed=n_experts, eviction=rule, register=register_memory)


def _stage(index: ExpertIndex, arena: RowArena, device: torch.device) -> Stage:
    if device.type == "cpu":
        return HostStage(index)
    if device.type != "cuda":
        raise InputError("device", device, "cpu and cuda are allowed")
    from livingkv.experts.cuda_queue import CudaQueue

    return DeviceStage(index, arena, CudaQueue(device), N_DEVICE_BUFFERS)


def _experts_per_token(config: Any, index: ExpertIndex) -> int:
    """How many experts of a layer a token chooses; all of them where the config does not say."""
    for name in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return max(layer.n_experts for layer in index.layers)
