"""`load_streamed`: a mixture-of-experts model whose experts stay in the files of its checkpoint.

The door of this package: it puts index, source, arena, stage and network together. Nothing is written, no checkpoint is
converted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from livingkv.errors import InputError
from livingkv.experts.ahead import N_AHEAD
from livingkv.experts.alternation import Alternation, Fixed, Verdict
from livingkv.experts.arena import N_PASSING, RowArena
from livingkv.experts.checkpoint import Checkpoint
from livingkv.experts.coded_format import CodedFormat
from livingkv.experts.codings import CODINGS
from livingkv.experts.counts import StreamCounts
from livingkv.experts.eviction import Eviction, LeastRecent, StableSubset
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.formats import Format, PlainFormat
from livingkv.experts.index import ExpertIndex
from livingkv.experts.network import fitted, load_network
from livingkv.experts.one_process import require_not_forked
from livingkv.experts.pack_choice import asked_pack
from livingkv.experts.pass_counter import PassCounter
from livingkv.experts.plan import Plan, plan_of
from livingkv.experts.plugging import plug_in, plug_in_ahead
from livingkv.experts.pread_source import N_THREADS, PIECE_BYTES, PreadSource
from livingkv.experts.row_loading import OpenTables, RowSettings, open_tables
from livingkv.experts.source import Source
from livingkv.experts.stage import DeviceStage, HostStage, Stage
from livingkv.experts.stream import ExpertStream
from livingkv.model_loading import has_tokenizer, load_tokenizer

LOG = logging.getLogger("livingkv.experts")

FORMATS: tuple[Format, ...] = (PlainFormat(), *map(CodedFormat, CODINGS))
N_DEVICE_BUFFERS = 4
ROWS = RowSettings()

SourceOf = Callable[[ExpertIndex], Source]
"""Makes the source of an index."""


@dataclass(frozen=True, slots=True)
class StreamedModel:
    """A network that `generate` and `forward` of transformers work on, and what streams its experts.

    Used by one thread at a time. checkpoint: the folder's own files; the index may be over a pack of them. tokenizer is
    None where the folder has none. close() ends it: a pass raises then.
    """

    network: Any
    tokenizer: Any
    checkpoint: Checkpoint
    index: ExpertIndex
    stream: ExpertStream
    clock: PassCounter
    tables: OpenTables | None = None

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
        """Wait for reads under way; give back files and RAM. Once is enough, twice is fine.

        In a process that was forked since it was loaded nothing is given back: it is the other's.
        """
        if not self.stream.process.is_this:
            return
        self.stream.close()
        if self.tables is not None:
            self.tables.close()

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
    pack: str | Path = "auto",
    n_threads: int = N_THREADS,
    piece_bytes: int = PIECE_BYTES,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    attention: str | None = None,
    formats: tuple[Format, ...] = FORMATS,
    read_ahead: Literal["auto", "on", "off"] = "auto",
    n_ahead: int = N_AHEAD,
    rows: RowSettings | None = ROWS,
    products: Literal["fused", "exact"] = "fused",
) -> StreamedModel:
    """Load a model folder without its experts; they are read when tokens need them.

    ram_bytes: for experts and for the buffers of the source, on top of the rest of the network; a hard limit.
    source: files past the page cache, files through it, or what makes another Source; n_threads and piece_bytes are
    for the first two. pack: the folder of a pack of its experts, which are then read from there, each against its
    checksum; "auto": the pack in the model's folder (`experts.pack`) if it is of the files that are there, else these
    files; "off": these files. dtype: None as in the config. attention: an attn_implementation of transformers.
    read_ahead: experts of the next layer are read early, at most n_ahead of them; auto compares the times of tokens
    and switches it off where it does not pay. What is computed is the same.
    rows: how tables of n-grams are read by row, their memory on top of ram_bytes; None: they are loaded whole.
    On a CUDA device torch's choice of cuDNN for attention is switched off, for the process.
    products: fused: on a GPU, up to 16 tokens are multiplied with experts in codes without decoding those, where a
    comparison at load allows it; sums have another order then, and last bits differ. exact: decoded, bit for bit.
    Blocks for as long as the rest of the network takes to be read. Raises ModelNotFound, ModelDamaged,
    UnsupportedModel, PackError, ModelError in a forked process, and InputError where not even one expert fits in
    ram_bytes.
    """
    require_not_forked()
    pace = _pace(read_ahead, n_ahead)
    if products not in ("fused", "exact"):
        raise InputError("products", products, "fused and exact are allowed")
    with ExitStack() as undo:
        packed, place = asked_pack(pack), torch.device(device)
        if place.type == "cuda":  # cuDNN's attention makes a plan for every new length: 10 ms a layer on an H200
            torch.backends.cuda.enable_cudnn_sdp(False)
        plan = plan_of(Path(path), dtype, place, formats, packed, rows_on_disk=rows is not None)
        made = _source(source, plan.index, n_threads, piece_bytes)
        undo.callback(made.close)
        arena = _arena(plan, ram_bytes, made.buffer_bytes)
        undo.callback(arena.close)
        network = load_network(plan, attention)
        formats_of = fitted(network, plan, may_multiply_codes=products == "fused")
        stream = ExpertStream(plan.index, made, arena, _stage(plan, arena), formats_of)
        names = [module.name for module in plan.modules]
        plug_in(network, names, stream)
        if pace is not None:
            plug_in_ahead(network, names, stream, pace, n_ahead)
        tables = None
        if rows is not None and plan.tables:
            tables = open_tables(plan.checkpoint, plan.tables, network, rows, plan.dtype)
            undo.callback(tables.close)
        tokenizer = load_tokenizer(plan.folder) if has_tokenizer(plan.folder) else None
        undo.pop_all()
    return StreamedModel(network, tokenizer, plan.checkpoint, plan.index, stream, PassCounter(network), tables)


def _pace(read_ahead: str, n_ahead: int) -> Alternation | Fixed | None:
    if read_ahead not in ("auto", "on", "off"):
        raise InputError("read_ahead", read_ahead, "auto, on and off are allowed")
    if n_ahead < 1:
        raise InputError("n_ahead", n_ahead, "at least 1 is needed; read_ahead=off switches it off")
    if read_ahead == "off":
        return None
    return Alternation() if read_ahead == "auto" else Fixed(Verdict.ALWAYS)


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


def _arena(plan: Plan, ram_bytes: int, buffer_bytes: int) -> RowArena:
    index = plan.index
    n_experts = sum(layer.n_experts for layer in index.layers)
    n_rows = min(n_experts, (ram_bytes - buffer_bytes) // index.row_bytes)
    if n_rows < 1:
        least = index.row_bytes + buffer_bytes
        allowed = f"one expert and the buffers of reading take {least} bytes: {least / 1e9:.2g} GB or more are needed"
        raise InputError("ram_bytes", ram_bytes, allowed)
    lap = len(index.layers) * experts_per_token(plan.config, index)

    def rule(n_kept: int) -> Eviction:
        if n_kept >= min(lap, n_experts):
            return LeastRecent(len(index.layers), n_kept)
        LOG.warning(
            "one token needs %d experts (%.2f GB) and %d can be kept: the same few stay in RAM, the rest is read for "
            "every token; %.2f GB of RAM would hold what a token needs",
            *(lap, lap * index.row_bytes / 1e9, n_kept, (lap + N_PASSING) * index.row_bytes / 1e9),
        )
        return StableSubset()

    register_memory = None
    if plan.device.type == "cuda":
        from livingkv.tiers.pinning import pin_for_cuda

        register_memory = pin_for_cuda
    return RowArena(n_rows, index.row_bytes, n_needed=n_experts, eviction=rule, register=register_memory)


def _stage(plan: Plan, arena: RowArena) -> Stage:
    if plan.device.type == "cpu":
        return HostStage(plan.index)
    from livingkv.cuda_queue import CudaQueue

    return DeviceStage(plan.index, arena, CudaQueue(plan.device), N_DEVICE_BUFFERS)


def experts_per_token(config: Any, index: ExpertIndex) -> int:
    """How many experts of a layer a token chooses; all of them where the config does not say."""
    for name in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return max(layer.n_experts for layer in index.layers)
