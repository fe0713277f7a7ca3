"""The benchmark: every figure beside its baselines from the same run, as JSON, a table and plots.

    python experiments/033_bench/run.py [--quick] [--device cuda] [--only probe,growth] [--gguf FILE]

Each figure is a script that can be run alone; here they run one after the other, each in a process of its own with a
limit of time. What fails is recorded and stops nothing else. Writes cpu.json, cpu_quick.json, cuda.json or
cuda_quick.json beside this file; a run with --only replaces these figures and keeps the others, if they were made on
this machine. Then docs/BENCH.md and plots are made anew (report.py, and plots.py, which needs matplotlib).
A shape of 7B goes to cuda_7b.json: --model FOLDER --out FILE.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from targets import SCRIPTS  # noqa: E402

from experiments.provenance import circumstances, write_json  # noqa: E402

HERE = Path(__file__).parent


def main(
    quick: Annotated[bool, typer.Option(help="Shorter texts, fewer rounds: minutes instead of hours.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str | None, typer.Option(help=f"Of {', '.join(SCRIPTS)}.")] = None,
    model: Annotated[str | None, typer.Option(help="A model spec.")] = None,
    gguf: Annotated[Path | None, typer.Option(help="The same weights, for llama.cpp.")] = None,
    scratch: Annotated[Path | None, typer.Option(help="Where stores of gigabytes are made.")] = None,
    shrink: Annotated[int, typer.Option(min=1, help="Divides lengths, to see that everything runs.")] = 1,
    lengths: Annotated[str, typer.Option(help="Other lengths, for figures at several: 32768,131072.")] = "",
    limit_s: Annotated[float, typer.Option(help="Seconds for one figure.")] = 1800,
    total_s: Annotated[float, typer.Option(help="Seconds for all: later figures are left out.")] = 1e9,
    out: Annotated[Path | None, typer.Option(help="Another file for the result.")] = None,
    report: Annotated[bool, typer.Option(help="Make plots and docs/BENCH.md.")] = True,
) -> None:
    """Run the figures and put them together."""
    out = out or HERE / f"{device}{'_quick' if quick else ''}.json"
    names = list(SCRIPTS) if only is None else only.split(",")
    if unknown := [name for name in names if name not in SCRIPTS]:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(SCRIPTS)}", param_hint="--only")
    options = ["--device", device] + (["--quick"] if quick else []) + (["--model", model] if model else [])
    options += ["--gguf", str(gguf)] if gguf else []
    options += ["--lengths", lengths] if lengths else []
    options += ["--shrink", str(shrink)] if shrink > 1 else []
    here = circumstances()
    result = kept(out, here) | {"circumstances": here, "device": device, "quick": quick}
    started = time.perf_counter()
    for name in names:
        left = min(limit_s, total_s - (time.perf_counter() - started))
        known = {"failed": "no time was left"} if left <= 0 else figure(SCRIPTS[name], options, scratch, left)
        result["figures"][name] = known
        print(f"{name}: {known.get('failed', 'done')}, {known.get('seconds', 0):.0f} s", file=sys.stderr, flush=True)
        write_json(out, result)
    if report:
        for script in ("report.py", "plots.py"):
            subprocess.run([sys.executable, str(HERE / script)], check=True)


def kept(out: Path, here: dict[str, Any]) -> dict[str, Any]:
    """The result that is there, or an empty one: also where it is another machine's, since a page names one."""
    known: dict[str, Any] = json.loads(out.read_text("utf-8")) if out.exists() else {}
    there = known.get("circumstances", {})
    if any(there.get(name) != here[name] for name in ("cpu", "n_cores", "gpus")):
        return {"figures": {}}
    return known


def figure(script: str, options: list[str], scratch: Path | None, limit_s: float) -> dict[str, Any]:
    """What one script wrote; rows that it made before it failed or was stopped are kept, its stores never."""
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="bench-") as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, str(HERE / script), "--out", str(out), "--scratch", folder, *options]
        failed = finished(command, limit_s)
        document: dict[str, Any] = json.loads(out.read_text("utf-8")) if out.exists() else {"rows": []}
        if failed is not None:
            document.setdefault("failed", failed)
        return document


def finished(command: list[str], limit_s: float) -> str | None:
    """Run it, with all that it starts, for so many seconds at most; what went wrong, None if nothing did."""
    env = os.environ | paths()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    try:
        _, said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"stopped after {limit_s:.0f} s"
    return (said.strip().splitlines() or [f"exit code {process.returncode}"])[-1] if process.returncode else None


def paths() -> dict[str, str]:
    """What a script finds modules by."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


if __name__ == "__main__":
    typer.run(main)
