"""What the first step of a process costs before it can be done: packing weights, with and without files from before.

    python experiments/036_packing_start/run.py [--rounds 3]

Each measurement is a process of its own: it loads the model, then has its packed step made, as the first generated
token does. `fitted`: the cache folder holds no matrices; `kept`: an earlier process has kept them; `none`: there is no
cache folder, as before there were files. Sides take turns. Wall time depends on who else uses the machine, CPU time
of the one thread less. The model's own files are in the page cache, and so are the kept ones.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any, Literal

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import circumstances, write_json  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
Side = Literal["none", "fitted", "kept"]
SIDES: tuple[Side, ...] = ("none", "fitted", "kept")
BITS = ("int8", "int4")


def measure(model: str | None, bits: Literal["int8", "int4"], threads: int, cache: str) -> dict[str, float]:
    """Seconds of making the step in this process. cache: where matrices are kept."""
    import torch

    from livingkv.engine import Engine
    from livingkv.models import load_model

    torch.set_num_threads(threads)
    engine = Engine.of(load_model(model, device="cpu", weights=bits), "int8")
    os.environ["LIVINGKV_CACHE"] = cache  # that of the model stays what it was
    torch.randn(256, 256).bfloat16() @ torch.randn(256, 256).bfloat16()  # what a first product starts
    started, busy = perf_counter(), process_time()
    step = engine.runner._packed_step()
    assert step is not None, "its weights are packed"
    return {"seconds": perf_counter() - started, "cpu_seconds": process_time() - busy}


def in_a_process(model: str | None, bits: str, threads: int, cache: str) -> dict[str, float]:
    """The same in a process of its own."""
    task = json.dumps([model, bits, threads, cache])
    done = subprocess.run([sys.executable, __file__, "--task", task], check=True, capture_output=True, text=True)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def rounds_of(model: str | None, bits: str, threads: int, n_rounds: int, scratch: Path) -> dict[str, Any]:
    """All sides in turns."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    cache = scratch / bits
    for _ in range(n_rounds):
        shutil.rmtree(cache, ignore_errors=True)
        for side in SIDES:
            found[side].append(in_a_process(model, bits, threads, os.devnull if side == "none" else str(cache)))
        print(bits, {side: each[-1] for side, each in found.items()}, flush=True)
    files = [path.stat().st_size for path in cache.rglob("*.safetensors")]
    medians = {
        side: {key: statistics.median(each[key] for each in found[side]) for key in found[side][0]} for side in SIDES
    }
    return {"median": medians, "rounds": found, "n_files": len(files), "kept_bytes": sum(files)}


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    model: Annotated[str | None, typer.Option(help="A model spec; left out: the default model.")] = None,
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = RESULT,
    task: Annotated[str | None, typer.Option(help="One measurement, of the processes that this one starts.")] = None,
) -> None:
    """Measure, write the raw result."""
    if task is not None:
        spec, bits, n, cache = json.loads(task)
        print(json.dumps(measure(spec, bits, n, cache)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        found = {bits: rounds_of(model, bits, threads, rounds, Path(scratch)) for bits in BITS}
    write_json(
        out, {"circumstances": circumstances(), "n_threads": threads, "model": model and Path(model).name} | found
    )


if __name__ == "__main__":
    typer.run(main)
