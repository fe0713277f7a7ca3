"""How long does a state of 120 MB take to be kept and to be there again, from RAM and from disk?

    python experiments/025_snapshots/run.py FOLDER [--rounds 30] [--device cuda]

The cache is qwen3_next's kind, 48 layers, every fourth with keys and values for 6,000 tokens, the others with
convolution and recurrent states, in bf16 and fp32: 120 MB of random numbers. Files go to FOLDER and are removed. Reads
from disk come from the page cache. Each restored state is compared with the original. Beside the time that passed, the
CPU time of the one thread is told: on a machine with other work the two differ. Three states fit the budgets. On a
device, states are copied from its memory and back into it; beside them a copy of as many bytes, in one piece, from
pageable and from pinned RAM, is told: what there is to be had.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Annotated, Any

import torch
import typer
from transformers import AutoConfig, DynamicCache

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.latency import percentile  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.snapshots import SnapshotKey, Snapshots  # noqa: E402

HERE = Path(__file__).parent
TOKENS = list(range(6000))
KEY = SnapshotKey("random", "random", "random", "random", "cpu")


def fresh() -> Any:
    """A new cache of 48 layers."""
    layers = ["full_attention" if number % 4 == 3 else "linear_attention" for number in range(48)]
    return DynamicCache(config=AutoConfig.for_model("qwen3_next", num_hidden_layers=48, layer_types=layers))


def filled(device: str) -> Any:
    """A cache with random states."""
    torch.manual_seed(25)
    cache = fresh()
    for number in range(48):
        if number % 4 == 3:
            keys = torch.randn(1, 2, len(TOKENS), 64).to(device, torch.bfloat16)
            cache.update(keys, keys.flip(2), number)
        else:
            cache.update_conv_state(torch.randn(1, 8192, 4).to(device, torch.bfloat16), number)
            cache.update_recurrent_state(torch.randn(1, 32, 128, 128).to(device), number)
    return cache


def is_same(one: Any, other: Any) -> bool:
    """Whether all keys, values and states are equal."""
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        for name in ("keys", "values"):
            state = getattr(mine, name, None)
            if isinstance(state, torch.Tensor) and not torch.equal(state, getattr(theirs, name)):
                return False
        for name in ("conv_states", "recurrent_states"):
            for number, state in getattr(mine, name, {}).items():
                if state is not None and not torch.equal(state, getattr(theirs, name)[number]):
                    return False
    return True


class Clock:
    """Milliseconds of calls: those that passed, and those that the thread computed."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def time(self, work: Callable[[], Any]) -> Any:
        """Call, and note how long it took."""
        started, computed = perf_counter(), thread_time()
        found = work()
        self.wall.append(1e3 * (perf_counter() - started))
        self.cpu.append(1e3 * (thread_time() - computed))
        return found

    def summary(self) -> dict[str, Any]:
        """Percentiles, and every single value."""
        wall = {f"p{share}": round(percentile(self.wall, share / 100), 2) for share in (50, 90, 99)}
        everything = {"wall": [round(one, 2) for one in self.wall], "cpu": [round(one, 2) for one in self.cpu]}
        return wall | {"cpu_p50": round(percentile(self.cpu, 0.5), 2), "all": everything}


def copied(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy to a CUDA device, and wait."""
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()


def one_piece(n_bytes: int, rounds: int) -> dict[str, Any]:
    """A copy of so many bytes to the CUDA device and the wait for it, from pageable and from pinned RAM."""
    found = {}
    for name in ("pageable", "pinned"):
        source, clock = torch.ones(n_bytes, dtype=torch.uint8), Clock()
        if name == "pinned":
            source = source.pin_memory()
        target = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")
        for _ in range(rounds):
            torch.cuda.synchronize()
            clock.time(partial(copied, source, target))
        found[name] = clock.summary()
    return found


def main(
    folder: Annotated[Path, typer.Argument()],
    rounds: int = 30,
    device: Annotated[str, typer.Option(help="cpu, or cuda")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="result.json, and result_h200.json for a device")] = None,
) -> None:
    """Measure and write `out`."""
    torch.set_num_threads(1)
    room, cache = folder / "snapshots", filled(device)
    clocks = {name: Clock() for name in ("take_ram", "restore_ram", "take_disk", "restore_disk")}
    is_equal = True
    try:
        ram = Snapshots(None, KEY, fresh, ram_bytes=400_000_000, disk_bytes=0, device=device)
        disk = Snapshots(room, KEY, fresh, ram_bytes=0, disk_bytes=400_000_000, device=device)
        for number in range(rounds + rounds // 3):
            tier, kept = ("ram", ram) if number < rounds else ("disk", disk)
            tokens = [number, *TOKENS[1:]]  # another conversation in each round, so that old ones make room
            taken = clocks[f"take_{tier}"].time(partial(kept.take, tokens, cache, on_disk=tier == "disk"))
            found = clocks[f"restore_{tier}"].time(partial(kept.longest, [*tokens, 1]))
            is_equal &= found is not None and found.tier.value == tier and is_same(found.cache, cache)
            del found
        document = {
            "circumstances": circumstances(),
            "load_average": os.getloadavg()[0],
            "state_bytes": taken.n_bytes,
            "device": device,
            "is_equal": is_equal,
            "ms": {name: clock.summary() for name, clock in clocks.items()},
        }
        if device == "cuda":
            document["one_piece_ms"] = one_piece(taken.n_bytes, rounds)
        write_json(out or HERE / ("result.json" if device == "cpu" else "result_h200.json"), document)
        raise typer.Exit(int(not is_equal))
    finally:
        shutil.rmtree(room, ignore_errors=True)


if __name__ == "__main__":
    typer.run(main)
