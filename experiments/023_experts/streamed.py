"""One process of run.py: a streamed model fed with random token ids, timed token by token. Prints one JSON object.

python streamed.py FOLDER --ram-gb 3 --read-ahead on [--emulated-mb-s 200] [--n-tokens 24] [--n-warm 24] [--device cuda]

Where the file system takes no direct reads, files are read through the page cache and dropped from it before each
token, which is not timed; `is_direct` says so.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Annotated, Any, Literal

import torch
import transformers.models.qwen3_moe.modeling_qwen3_moe  # noqa: F401  the code itself is not what is measured
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.page_cache import buffered_bytes_per_s, drop_from_cache  # noqa: E402
from experiments.provenance import memory_bytes  # noqa: E402
from livingkv.errors import ExpertReadError  # noqa: E402
from livingkv.experts import EmulatedSource, ExpertIndex, Source, StreamedModel, load_streamed  # noqa: E402
from livingkv.experts.drive_speed import DriveSpeed, measure_drive  # noqa: E402
from livingkv.experts.files import CheckpointFiles  # noqa: E402
from livingkv.experts.layout import BLOCK_BYTES  # noqa: E402
from livingkv.experts.loading import SourceOf  # noqa: E402
from livingkv.experts.pread_source import N_THREADS, PIECE_BYTES, PreadSource  # noqa: E402
from livingkv.experts.route_trace import RouteRecorder  # noqa: E402

DEPTHS = (2, 4, 8, 16)


def emulated(megabytes_per_s: float) -> SourceOf:
    """Makes the source that is as slow as that."""

    def make(index: ExpertIndex) -> Source:
        files = CheckpointFiles(index.checkpoint, direct=True)
        return EmulatedSource(PreadSource(index, files, N_THREADS, PIECE_BYTES), index, megabytes_per_s * 1e6)

    return make


def reads_directly(index: ExpertIndex) -> bool:
    """Whether files can be read past the page cache: opening them so is not always refused where reading them is."""
    files = CheckpointFiles(index.checkpoint, direct=True)
    try:
        files.read(0, memoryview(mmap.mmap(-1, BLOCK_BYTES)), 0, BLOCK_BYTES)
        return files.is_direct
    finally:
        files.close()


def drive(folder: Path, n_bytes: int, seconds: float) -> DriveSpeed:
    """The best that the drive does with expert-sized reads at this moment, over a few depths."""
    paths = sorted(folder.glob("*.safetensors"))
    try:
        found = measure_drive(paths, sizes=(n_bytes,), depths=DEPTHS, seconds_each=seconds)
    except ExpertReadError:  # no direct reads here
        found = []
        for depth in DEPTHS:
            n_reads = seconds * buffered_bytes_per_s(paths, n_bytes, depth, seconds) / n_bytes
            found.append(DriveSpeed(n_bytes, depth, round(n_reads), seconds))
    return max(found, key=lambda one: one.bytes_per_s)


def started(device: str) -> None:
    """Let a device take what memory of the host its libraries need, so that it is not counted as the model's."""
    if device == "cuda":
        one = torch.ones(256, 256, dtype=torch.bfloat16, device=device)
        (one @ one).sum().item()
        torch.cuda.reset_peak_memory_stats()


class Feed:
    """Random token ids, one after the other, with a KV cache. before: called before each token, and not timed."""

    def __init__(self, streamed: StreamedModel, seed: int, before: Callable[[], None]) -> None:
        self._network = streamed.network
        self._before = before
        self._random = torch.Generator().manual_seed(seed)
        self._cache: Any = None

    def token(self) -> float:
        """Compute one token; its seconds, output head included."""
        self._before()
        ids = torch.randint(0, self._network.config.vocab_size, (1, 1), generator=self._random)
        began = perf_counter()
        with torch.inference_mode():
            made = self._network(ids.to(self._network.device), past_key_values=self._cache, use_cache=True)
        if self._network.device.type == "cuda":
            torch.cuda.synchronize()
        self._cache = made.past_key_values
        return perf_counter() - began

    def tokens(self, n_at_most: int, seconds: float) -> list[float]:
        """So many tokens, or as many as fit in that time but four at least; the seconds of each."""
        began, found = perf_counter(), list[float]()
        while len(found) < n_at_most and (len(found) < 4 or perf_counter() - began < seconds):
            found.append(self.token())
        return found


def main(
    folder: Path,
    ram_gb: float = 3.0,
    read_ahead: str = "auto",
    n_ahead: int = 2,
    n_tokens: int = 24,
    n_warm: int = 24,
    emulated_mb_s: float = 0.0,
    torch_threads: int = 1,
    piece_bytes: int = PIECE_BYTES,
    n_threads: int = N_THREADS,
    device: str = "cpu",
    max_s: Annotated[float, typer.Option(help="for the timed tokens, and as much for those before them")] = 600.0,
    drive_s: Annotated[float, typer.Option(help="for each depth of the drive's own speed")] = 0.7,
    trace: Annotated[Path | None, typer.Option(help="record the routes of the timed tokens")] = None,
) -> None:
    """Measure and print."""
    torch.set_num_threads(torch_threads)  # with as many as there are cores, threads that read would wait for them
    started(device)
    before = memory_bytes()
    mode: Literal["auto", "on", "off"] = "auto" if read_ahead == "auto" else "on" if read_ahead == "on" else "off"
    source: Literal["direct"] | SourceOf = emulated(emulated_mb_s) if emulated_mb_s else "direct"
    ram_bytes = int(ram_gb * 1e9)
    with load_streamed(
        folder,
        ram_bytes=ram_bytes,
        source=source,
        n_threads=n_threads,
        piece_bytes=piece_bytes,
        read_ahead=mode,
        n_ahead=n_ahead,
        device=device,
    ) as streamed:
        is_direct = reads_directly(streamed.index)
        expert_bytes = streamed.index.expert_bytes(0)
        rest_bytes = sum(value.nbytes for value in streamed.network.state_dict().values())
        feed = Feed(streamed, seed=0, before=(lambda: None) if is_direct else partial(drop_from_cache, folder))
        feed.tokens(n_warm, max_s)
        speeds = [] if emulated_mb_s else [drive(folder, expert_bytes, drive_s)]
        first = streamed.counts()
        if trace is not None:
            recorder = RouteRecorder(trace, tuple(layer.n_experts for layer in streamed.index.layers))
            streamed.stream.on_asked = recorder.record
        own_s, all_s = thread_time(), process_time()
        seconds = feed.tokens(n_tokens, max_s)
        own_s, all_s = thread_time() - own_s, process_time() - all_s
        last = streamed.counts()
        if trace is not None:
            recorder.close()
        speeds += [] if emulated_mb_s else [drive(folder, expert_bytes, drive_s)]
        resident = memory_bytes() - before
        device_peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        ring = streamed.stream.stage.buffer_bytes
    n_tokens, rest_here = len(seconds), 0 if device == "cuda" else rest_bytes
    bandwidth = emulated_mb_s * 1e6 if emulated_mb_s else sum(one.bytes_per_s for one in speeds) / len(speeds)
    n_missed = last.n_misses - first.n_misses + last.ahead.n_used - first.ahead.n_used
    read_bytes = last.source.n_bytes - first.source.n_bytes
    document = {
        "ram_bytes": ram_bytes,
        "read_ahead": read_ahead,
        "is_emulated": bool(emulated_mb_s),
        "is_direct": is_direct,
        "device": device,
        "bytes_per_s": bandwidth,
        "drive": [asdict(one) for one in speeds],
        "torch_threads": torch_threads,
        "piece_bytes": piece_bytes,
        "n_threads": n_threads,
        "n_tokens": n_tokens,
        "token_s": seconds,
        "tokens_per_s": n_tokens / sum(seconds),
        "hit_share": 1 - n_missed / max(1, last.n_hits + last.n_misses - first.n_hits - first.n_misses),
        "missed_bytes_per_token": n_missed * expert_bytes / n_tokens,
        "read_bytes_per_token": read_bytes / n_tokens,
        "eta": n_missed * expert_bytes / bandwidth / sum(seconds),
        "waited_share": (last.waited_s - first.waited_s) / sum(seconds),
        "computed_share": own_s / sum(seconds),  # the model's thread on a core; the rest it waited, for reads or a core
        "cores": all_s / sum(seconds),
        "ahead": asdict(last.ahead),
        "rest_bytes": rest_bytes,
        "resident_bytes": resident,
        "resident_of_allowed": resident / (rest_here + ram_bytes),
        "device_peak_bytes": device_peak,
        "device_ring_bytes": ring,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    typer.run(main)
