"""A mixture-of-experts model of 13 GB, streamed from a drive: how near to the drive's own speed, and against baselines.

    python experiments/023_experts/run.py --scratch DIR [--airllm-python PYTHON] [--layers 10] [--experts 128]

Makes a checkpoint with the layer shapes of Qwen3-30B-A3B and random weights in DIR (which needs 14 GB, 28 GB with the
baselines), measures the drive's O_DIRECT reads by size and depth, streams random tokens with several RAM budgets with
and without reading ahead, on the drive and on an emulated slower one, then accelerate's disk offload and AirLLM on the
same files, and deletes everything again. eta = (missed bytes / bandwidth of expert-sized O_DIRECT reads) / time of a
token; the bandwidth is measured just before and just after the tokens, in the same process. Missed bytes are those of
experts that were not in RAM; wasted reads ahead do not count.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.progress import progress_bar  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.synthetic_moe import MoeShape, make_checkpoint  # noqa: E402
from livingkv.experts.drive_speed import measure_drive  # noqa: E402
from livingkv.experts.route_trace import read_trace  # noqa: E402
from livingkv.experts.simulation import simulate  # noqa: E402

HERE = Path(__file__).parent
SHARES = (0.04, 0.125, 0.25, 0.5)
"""RAM budgets, as shares of all experts. The first is less than what a token needs."""
AUTO_TOKENS = 100
MORE_PIECES = ((2 << 20, 8), (4 << 20, 4))
"""Bytes of a piece and threads that are tried besides the defaults."""


def finished(command: list[str]) -> dict[str, Any]:
    """What a process printed as JSON in its last line; or how it failed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        notes = [line for line in done.stderr.splitlines() if "reading ahead" in line or "one token needs" in line]
        return answer | ({"log": notes} if notes else {})
    return {"failed": done.returncode, "error": done.stderr.strip().splitlines()[-6:]}


def streamed(folder: Path, **options: object) -> dict[str, Any]:
    """One run of streamed.py."""
    given = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    return finished([sys.executable, str(HERE / "streamed.py"), str(folder), *given])


def offloaded(python: str, which: str, folder: Path, scratch: Path, n_tokens: int) -> dict[str, Any]:
    """One run of offloaded.py; what it wrote is deleted."""
    scratch.mkdir()
    try:
        command = [python, str(HERE / "offloaded.py"), which, str(folder), str(scratch), f"--n-tokens={n_tokens}"]
        return finished(command)
    finally:
        shutil.rmtree(scratch)


def plans(shape: MoeShape, n_tokens: int, emulated_mb_s: float) -> list[dict[str, object]]:
    """Options of every run of streamed.py."""
    budgets = [share * shape.experts_bytes / 1e9 for share in SHARES]
    found: list[dict[str, object]] = [
        {"ram_gb": budget, "read_ahead": mode, "n_tokens": n_tokens} for budget in budgets for mode in ("off", "on")
    ]
    found.append({"ram_gb": budgets[2], "read_ahead": "auto", "n_tokens": AUTO_TOKENS})
    for piece_bytes, n_threads in MORE_PIECES:
        pieces = {"piece_bytes": piece_bytes, "n_threads": n_threads, "n_tokens": n_tokens}
        found.append({"ram_gb": budgets[1], "read_ahead": "on", **pieces})
    for mode in ("off", "on"):
        slow = {"emulated_mb_s": emulated_mb_s, "n_tokens": n_tokens // 2, "n_warm": 8}
        found.append({"ram_gb": budgets[1], "read_ahead": mode, **slow})
    return found


def simulated(path: Path, shape: MoeShape) -> list[dict[str, object]]:
    """Hits of every rule over the recorded tokens, by share of the experts that an arena holds."""
    n_experts = shape.n_layers * shape.n_experts
    sizes = [max(1, round(share * n_experts)) for share in (*SHARES, 0.75, 1.0)]
    return [asdict(one) for one in simulate(read_trace(path), sizes, [shape.expert_bytes] * shape.n_layers)]


def main(
    scratch: Annotated[Path, typer.Option(help="a folder that is not there yet; it is deleted afterwards")],
    layers: int = 10,
    experts: int = 128,
    vocabulary: int = 151936,
    n_tokens: int = 24,
    n_baseline_tokens: int = 2,
    emulated_mb_s: float = 200.0,
    airllm_python: Annotated[str | None, typer.Option(help="the Python of an environment with AirLLM")] = None,
    out: Path = HERE / "result.json",
) -> None:
    """Measure everything and write `out`."""
    shape = MoeShape(n_layers=layers, n_experts=experts, vocabulary=vocabulary)
    folder = scratch / "model"
    scratch.mkdir(parents=True)
    result: dict[str, Any] = {"circumstances": circumstances(), "shape": asdict(shape)}
    try:
        todo = plans(shape, n_tokens, emulated_mb_s)
        with progress_bar() as progress:
            task = progress.add_task("writing the checkpoint", total=len(todo) + 4)
            result["checkpoint_bytes"] = sum(make_checkpoint(folder, shape))
            subprocess.run(["sync", "-f", str(folder)], check=True)
            progress.update(task, description="the drive", advance=1)
            sizes = (1 << 20, shape.expert_bytes)
            result["drive"] = [
                asdict(one) | {"bytes_per_s": one.bytes_per_s}
                for one in measure_drive(sorted(folder.glob("*.safetensors")), sizes=sizes)
            ]
            result["streamed"] = []
            for plan in todo:
                progress.update(
                    task, description=" ".join(f"{name} {value}" for name, value in plan.items()), advance=1
                )
                options = plan | ({"trace": scratch / "routes"} if "auto" in plan.values() else {})
                result["streamed"].append(streamed(folder, **options))
                write_json(out, result)
            if (scratch / "routes").exists():
                result["simulated"] = simulated(scratch / "routes", shape)
            progress.update(task, description="accelerate", advance=1)
            result["accelerate"] = offloaded(
                sys.executable, "accelerate", folder, scratch / "offload", n_baseline_tokens
            )
            progress.update(task, description="AirLLM", advance=1)
            if airllm_python is not None:
                result["airllm"] = offloaded(airllm_python, "airllm", folder, scratch / "split", n_baseline_tokens)
            write_json(out, result)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    typer.run(main)
