"""One process of run.py: a streamed model fed with random token ids, timed token by token. Prints one JSON object.

python streamed.py FOLDER --ram-gb 3 --read-ahead on [--emulated-mb-s 200] [--n-tokens 24] [--n-warm 24]
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Annotated, Any, Literal

import torch
import transformers.models.qwen3_moe.modeling_qwen3_moe  # noqa: F401  the code itself is not what is measured
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import memory_bytes  # noqa: E402
from livingkv.experts import EmulatedSource, ExpertIndex, Source, StreamedModel, load_streamed  # noqa: E402
from livingkv.experts.drive_speed import DriveSpeed, measure_drive  # noqa: E402
from livingkv.experts.files import CheckpointFiles  # noqa: E402
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


def drive(folder: Path, n_bytes: int) -> DriveSpeed:
    """The best that the drive does with expert-sized reads at this moment, over a few depths."""
    found = measure_drive(sorted(folder.glob("*.safetensors")), sizes=(n_bytes,), depths=DEPTHS, seconds_each=0.7)
    return max(found, key=lambda one: one.bytes_per_s)


class Feed:
    """Random token ids, one after the other, with a KV cache."""

    def __init__(self, streamed: StreamedModel, seed: int) -> None:
        self._network = streamed.network
        self._random = torch.Generator().manual_seed(seed)
        self._cache: Any = None

    def token(self) -> float:
        """Compute one token; its seconds, output head included."""
        ids = torch.randint(0, self._network.config.vocab_size, (1, 1), generator=self._random)
        started = perf_counter()
        with torch.inference_mode():
            self._cache = self._network(ids, past_key_values=self._cache, use_cache=True).past_key_values
        return perf_counter() - started


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
    trace: Annotated[Path | None, typer.Option(help="record the routes of the timed tokens")] = None,
) -> None:
    """Measure and print."""
    torch.set_num_threads(torch_threads)  # with as many as there are cores, threads that read would wait for them
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
    ) as streamed:
        expert_bytes = streamed.index.expert_bytes(0)
        rest_bytes = sum(value.nbytes for value in streamed.network.state_dict().values())
        feed = Feed(streamed, seed=0)
        for _ in range(n_warm):
            feed.token()
        speeds = [] if emulated_mb_s else [drive(folder, expert_bytes)]
        first = streamed.counts()
        if trace is not None:
            recorder = RouteRecorder(trace, tuple(layer.n_experts for layer in streamed.index.layers))
            streamed.stream.on_asked = recorder.record
        own_s, all_s = thread_time(), process_time()
        seconds = [feed.token() for _ in range(n_tokens)]
        own_s, all_s = thread_time() - own_s, process_time() - all_s
        last = streamed.counts()
        if trace is not None:
            recorder.close()
        speeds += [] if emulated_mb_s else [drive(folder, expert_bytes)]
        resident = memory_bytes() - before
    bandwidth = emulated_mb_s * 1e6 if emulated_mb_s else sum(one.bytes_per_s for one in speeds) / len(speeds)
    n_missed = last.n_misses - first.n_misses + last.ahead.n_used - first.ahead.n_used
    read_bytes = last.source.n_bytes - first.source.n_bytes
    document = {
        "ram_bytes": ram_bytes,
        "read_ahead": read_ahead,
        "is_emulated": bool(emulated_mb_s),
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
        "resident_of_allowed": resident / (rest_bytes + ram_bytes),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    typer.run(main)
