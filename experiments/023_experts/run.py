"""A mixture-of-experts model of 13 GB, streamed from a drive: how near to the drive's own speed, and against baselines.

    python experiments/023_experts/run.py --scratch DIR [--airllm-python PYTHON] [--airllm-path FOLDER]
        [--device cuda] [--layers 10] [--experts 128] [--deadline-s 540]

Makes a checkpoint with the layer shapes of Qwen3-30B-A3B and random weights in DIR (which needs 14 GB, 28 GB with the
baselines), measures the drive's O_DIRECT reads by size and depth, streams random tokens with several RAM budgets with
and without reading ahead, on the drive and on an emulated slower one, then accelerate's disk offload and AirLLM on the
same files, and deletes everything again. A part that fails is told in the result, and so is one for which no time
was left; the result is written after every part.
eta = (missed bytes / bandwidth of expert-sized O_DIRECT reads) / time of a token; the bandwidth is measured just before
and just after the tokens, in the same process. Missed bytes are those of experts that were not in RAM; wasted reads
ahead do not count.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.page_cache import buffered_bytes_per_s, drop_from_cache  # noqa: E402
from experiments.progress import progress_bar  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.synthetic_moe import MoeShape, make_checkpoint  # noqa: E402
from livingkv.errors import ExpertReadError, LivingKVError  # noqa: E402
from livingkv.experts.drive_speed import DEPTHS, measure_drive  # noqa: E402
from livingkv.experts.route_trace import read_trace  # noqa: E402
from livingkv.experts.simulation import simulate  # noqa: E402

HERE = Path(__file__).parent
SHARES = (0.04, 0.125, 0.25, 0.5)
"""RAM budgets, as shares of all experts. The first is less than what a token needs."""
SECONDS_EACH = 8.0
"""For the timed tokens of a run on a device, and as much for those before them."""
AUTO_TOKENS = 100
TOLD = ("reading ahead", "one token needs", "cannot be pinned")
"""What of a run's log goes into the result."""
LEAST_S = 10.0
"""With less time left than this no process is started."""
BASELINE_S = 150.0
"""A baseline on a device takes no more than this."""
MORE_PIECES = ((2 << 20, 8), (4 << 20, 4))
"""Bytes of a piece and threads that are tried besides the defaults."""


class Clock:
    """How much time is left."""

    def __init__(self, deadline_s: float) -> None:
        self._end = perf_counter() + deadline_s

    @property
    def left_s(self) -> float:
        """Seconds; at least none."""
        return max(0.0, self._end - perf_counter())


def finished(
    command: list[str], clock: Clock, *, first_path: str | None = None, at_most_s: float = 36000.0
) -> dict[str, Any]:
    """What a process printed as JSON in its last line; or how it failed. first_path: where it imports from first."""
    if clock.left_s < LEAST_S:
        return {"skipped": "no time was left"}
    known = os.environ.get("PYTHONPATH")
    paths = [path for path in (first_path, str(ROOT), known) if path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    try:
        seconds = min(clock.left_s, at_most_s)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        return {"failed": None, "error": [f"it took longer than the {error.timeout:.0f} s that it was given"]}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        notes = [line for line in done.stderr.splitlines() if any(word in line for word in TOLD)]
        return answer | ({"log": notes} if notes else {})
    return {"failed": done.returncode, "error": done.stderr.strip().splitlines()[-6:]}


def streamed(folder: Path, clock: Clock, **options: object) -> dict[str, Any]:
    """One run of streamed.py."""
    began = perf_counter()
    given = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    found = finished([sys.executable, str(HERE / "streamed.py"), str(folder), *given], clock)
    return found | {"process_s": perf_counter() - began}


def offloaded(
    options: list[str], folder: Path, scratch: Path, clock: Clock, *, python: str, first_path: str | None = None
) -> dict[str, Any]:
    """One run of offloaded.py; what it wrote is deleted."""
    scratch.mkdir()
    began = perf_counter()
    try:
        command = [python, str(HERE / "offloaded.py"), options[0], str(folder), str(scratch), *options[1:]]
        at_most_s = BASELINE_S if "--device=cuda" in options else 36000.0
        found = finished(command, clock, first_path=first_path, at_most_s=at_most_s)
        return found | {"process_s": perf_counter() - began}
    finally:
        shutil.rmtree(scratch)


def drive(folder: Path, shape: MoeShape, seconds_each: float) -> list[dict[str, Any]]:
    """Reads past the page cache by size and depth; where they are refused, through it, from files dropped from it."""
    paths, sizes = sorted(folder.glob("*.safetensors")), (1 << 20, shape.expert_bytes)
    try:
        speeds = measure_drive(paths, sizes=sizes, seconds_each=seconds_each)
    except ExpertReadError as error:
        return [
            {"is_direct": False, "reason": str(error), "read_bytes": size, "depth": depth, "bytes_per_s": speed}
            for size, depth in product(sizes, DEPTHS)
            for speed in [buffered_bytes_per_s(paths, size, depth, seconds_each)]
        ]
    return [asdict(one) | {"bytes_per_s": one.bytes_per_s} for one in speeds]


def device_plans(shape: MoeShape, n_tokens: int, emulated_mb_s: float) -> tuple[list[dict[str, object]], ...]:
    """Options of runs of streamed.py on a device: those before the baselines, and those after them."""
    budgets = [share * shape.experts_bytes / 1e9 for share in SHARES]
    common: dict[str, object] = {"device": "cuda", "n_tokens": n_tokens, "max_s": SECONDS_EACH, "drive_s": 0.4}
    off, on = ([common | {"ram_gb": one, "read_ahead": mode} for one in budgets] for mode in ("off", "on"))
    # a little more than all experts, for the buffers of the reading threads
    whole = {"ram_gb": 1.01 * shape.experts_bytes / 1e9, "read_ahead": "off", "n_warm": 64}
    auto = {"ram_gb": budgets[1], "read_ahead": "auto", "n_tokens": AUTO_TOKENS, "max_s": 2 * SECONDS_EACH}
    pieces = [
        {"ram_gb": budgets[0], "read_ahead": "off", "piece_bytes": piece_bytes, "n_threads": n_threads}
        for piece_bytes, n_threads in ((1 << 20, 16), *MORE_PIECES)
    ]
    slow: list[dict[str, object]] = [
        {"ram_gb": budgets[1], "read_ahead": mode, "emulated_mb_s": emulated_mb_s, "n_warm": 8}
        for mode in ("off", "on")
    ]
    others = [common | one for one in (auto, *pieces, *slow)]
    return [*off, *on[:2]], [common | whole, *on[2:], *others]


def plans(shape: MoeShape, n_tokens: int, emulated_mb_s: float) -> list[dict[str, object]]:
    """Options of every run of streamed.py on a CPU."""
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


@dataclass(frozen=True, slots=True)
class Run:
    """One call of this script: where everything is, and what is written after every part."""

    shape: MoeShape
    scratch: Path
    out: Path
    clock: Clock
    result: dict[str, Any]

    @property
    def folder(self) -> Path:
        """The checkpoint."""
        return self.scratch / "model"

    def part(self, name: str, make: Callable[[], Any]) -> None:
        """Do a part and write what came of it."""
        try:
            self.result[name] = make()
        except (OSError, LivingKVError, subprocess.SubprocessError, RuntimeError, ValueError) as error:
            self.result[name] = {"failed": type(error).__name__, "error": [str(error)]}
        self.result["seconds_left"] = self.clock.left_s
        write_json(self.out, self.result)

    def checkpoint(self, device: str) -> int:
        """Make it, and take it out of the page cache."""
        n_bytes = sum(make_checkpoint(self.folder, self.shape, device=device))
        subprocess.run(["sync", "-f", str(self.folder)], check=True)
        drop_from_cache(self.folder)
        return n_bytes

    def streamed(self, todo: list[dict[str, object]]) -> None:
        """Runs of streamed.py, one after the other."""
        for plan in todo:
            options = plan | ({"trace": self.scratch / "routes"} if "auto" in plan.values() else {})
            done = [*self.result.get("streamed", []), plan | streamed(self.folder, self.clock, **options)]
            self.part("streamed", partial(list, done))

    def offloaded(self, which: str, options: list[str], *, python: str, first_path: str | None = None) -> None:
        """A baseline."""
        room = self.scratch / which
        make = partial(offloaded, python=python, first_path=first_path)
        self.part(which, lambda: make([which, *options], self.folder, room, self.clock))


def main(
    scratch: Annotated[Path, typer.Option(help="a folder that is not there yet; it is deleted afterwards")],
    layers: int = 10,
    experts: int = 128,
    vocabulary: int = 151936,
    n_tokens: int = 24,
    n_baseline_tokens: int = 2,
    emulated_mb_s: float = 200.0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    dry: Annotated[bool, typer.Option(help="the runs of a device, on the CPU")] = False,
    deadline_s: Annotated[float, typer.Option(help="parts for which no time is left are left out")] = 36000.0,
    airllm_python: Annotated[str | None, typer.Option(help="the Python of an environment with AirLLM")] = None,
    airllm_path: Annotated[str | None, typer.Option(help="a folder that AirLLM's process imports from first")] = None,
    out: Annotated[Path | None, typer.Option(help="result.json, and result_h200.json for a device")] = None,
) -> None:
    """Measure everything and write `out`."""
    shape = MoeShape(n_layers=layers, n_experts=experts, vocabulary=vocabulary)
    is_device = dry or device != "cpu"
    scratch.mkdir(parents=True)
    out = out or HERE / ("result_h200.json" if is_device else "result.json")
    result: dict[str, Any] = {"circumstances": circumstances(), "device": device, "shape": asdict(shape)}
    run = Run(shape, scratch, out, Clock(deadline_s), result)
    before, after = plans(shape, n_tokens, emulated_mb_s), list[dict[str, object]]()
    if is_device:
        before, after = device_plans(shape, n_tokens, emulated_mb_s)
    if dry:
        before, after = ([plan | {"device": "cpu"} for plan in some] for some in (before, after))
    common = [f"--n-tokens={n_baseline_tokens}", f"--device={device}"]
    steps: list[tuple[str, Callable[[], None]]] = [
        ("writing the checkpoint", lambda: run.part("checkpoint_bytes", lambda: run.checkpoint(device))),
        ("the drive", lambda: run.part("drive", lambda: drive(run.folder, shape, 0.5 if is_device else 1.0))),
        *((words(plan), partial(run.streamed, [plan])) for plan in before),
        ("accelerate", lambda: run.offloaded("accelerate", common, python=sys.executable)),
    ]
    if airllm_python is not None or airllm_path is not None:
        python = airllm_python or sys.executable
        steps.append(("AirLLM", lambda: run.offloaded("airllm", common, python=python, first_path=airllm_path)))
    steps += [(words(plan), partial(run.streamed, [plan])) for plan in after]
    try:
        with progress_bar() as progress:
            task = progress.add_task("", total=len(steps))
            for description, step in steps:
                progress.update(task, description=description)
                step()
                progress.update(task, advance=1)
        if (scratch / "routes").exists():
            run.part("simulated", lambda: simulated(scratch / "routes", shape))
    finally:
        shutil.rmtree(scratch)


def words(plan: dict[str, object]) -> str:
    """A plan for people."""
    return " ".join(f"{name} {value}" for name, value in plan.items())


if __name__ == "__main__":
    typer.run(main)
