"""Needles in a haystack: 100 facts of one type hidden in docstring prose, 20 of them asked for by another process.

    python experiments/001_needle/run.py --tokens 8000,32000 --kill

For every length one process reads the haystack into a store and ends (with --kill by SIGKILL after its last durable
commit, without closing anything); a new process asks. Writes raw JSON after every answer; started again with the same
arguments it goes on where it stopped. Exits with 1 when fewer than --pass of the answers are right at any length.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import typer
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.progress import progress_bar  # noqa: E402
from experiments.provenance import write_json  # noqa: E402

WORKER = Path(__file__).with_name("worker.py")
RESULT = Path(__file__).with_name("result.json")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. A result file belongs to one plan."""

    tokens: tuple[int, ...]
    needles: int
    ask: int
    mode: str
    phrasings: tuple[int, ...]
    seed: int
    kill: bool
    model: str | None
    max_tokens: int
    settings: dict[str, Any]


class Worker:
    """A child process that gets a task and tells what it does, a JSON document a line."""

    def __init__(self, task: dict[str, Any]) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        self.send(json.dumps(task) + "\n")

    def send(self, text: str) -> None:
        """Writes to the child's standard input."""
        pipe = _pipe(self.process.stdin)
        pipe.write(text)
        pipe.flush()

    def told(self) -> Iterator[dict[str, Any]]:
        """What the child tells, until it ends. Raises RuntimeError when it fails."""
        for line in _pipe(self.process.stdout):
            yield json.loads(line)
        if self.process.wait() != 0:
            raise RuntimeError(f"the child process ended with {self.process.returncode}; its error stands above")

    def end(self, *, kill: bool) -> None:
        """Ends the child: by SIGKILL, or by closing its standard input and waiting until it has closed its store."""
        if kill:
            self.process.send_signal(signal.SIGKILL)
        _pipe(self.process.stdin).close()
        if self.process.wait() not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the child process ended with {self.process.returncode}; its error stands above")


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def read_haystack(plan: Plan, n_tokens: int, store: Path, progress: Progress) -> dict[str, Any]:
    """Has a child read the haystack, ends the child, and gives what it told last."""
    bar = progress.add_task(f"{n_tokens:,} tokens: read (bytes)", total=None)
    worker = Worker({**asdict(plan), "role": "ingest", "tokens": n_tokens, "store": str(store)})
    for row in worker.told():
        if row["kind"] == "done":
            worker.end(kill=plan.kill)
            return {key: value for key, value in row.items() if key != "kind"} | {"killed": plan.kill}
        progress.update(bar, completed=row["done_bytes"], total=row["total_bytes"])
    raise RuntimeError("the child process ended before it was done; its error stands above")


def ask_needles(
    plan: Plan, n_tokens: int, store: Path, answered: list[dict[str, Any]], progress: Progress
) -> Iterator[dict[str, Any]]:
    """Has a new child ask what was not asked yet; gives every answer, then the end with the peak memory."""
    total = plan.ask * len(plan.phrasings)
    bar = progress.add_task(f"{n_tokens:,} tokens: ask", total=total, completed=len(answered))
    keys = [{"phrasing": row["phrasing"], "key": row["key"]} for row in answered]
    for row in Worker({**asdict(plan), "role": "ask", "store": str(store), "answered": keys}).told():
        if row["kind"] == "answer":
            progress.advance(bar)
        yield row


def run_length(plan: Plan, n_tokens: int, store: Path, length: dict[str, Any], progress: Progress) -> Iterator[None]:
    """Fills `length`, the result of one length; what it holds already is kept. Yields after every step."""
    length.setdefault("n_tokens_asked_for", n_tokens)
    if "ingest" not in length:
        length["ingest"] = read_haystack(plan, n_tokens, store, progress)
        yield
    answers: list[dict[str, Any]] = length.setdefault("answers", [])
    if "ask" in length:
        return
    start, n_before = time.time(), len(answers)
    for row in ask_needles(plan, n_tokens, store, answers, progress):
        kind = row.pop("kind")
        if kind == "answer":
            answers.append(row)
        else:
            length["ask"] = {**row, "n_answers": len(answers) - n_before, "seconds": time.time() - start}
            length["summary"] = summary(answers)
        yield


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts over the answers of one length, all together and for each phrasing."""
    found: dict[str, Any] = {}
    for phrasing in (None, *sorted({row["phrasing"] for row in answers})):
        rows = [row for row in answers if phrasing in (None, row["phrasing"])]
        found["all" if phrasing is None else f"phrasing {phrasing}"] = {
            "n": len(rows),
            "correct": sum(row["correct"] for row in rows),
            "evidence_first": sum(row["evidence_rank"] == 1 for row in rows),
            "evidence_found": sum(row["evidence_rank"] is not None for row in rows),
            "confident": sum(row["confident"] for row in rows),
            "wrong_but_confident": sum(row["confident"] and not row["correct"] for row in rows),
            "modes": {mode: sum(row["mode"] == mode for row in rows) for mode in sorted({row["mode"] for row in rows})},
            "median_total_ms": sorted(row["timings_ms"]["total"] for row in rows)[len(rows) // 2],
        }
    return found


def main(
    tokens: Annotated[str, typer.Option(help="Lengths of the haystack, with commas between them.")] = "8000,32000",
    needles: Annotated[int, typer.Option(help="Needles in each haystack.")] = 100,
    ask: Annotated[int, typer.Option(help="Needles asked for.")] = 20,
    mode: Annotated[Literal["auto", "kv", "ground", "extract", "exact"], typer.Option()] = "auto",
    phrasing: Annotated[str, typer.Option(help="Which of the three phrasings, with commas between them.")] = "1",
    seed: int = 0,
    kill: Annotated[bool, typer.Option("--kill", help="SIGKILL between reading and asking.")] = False,
    model: str | None = None,
    max_tokens: Annotated[int, typer.Option(help="The longest answer, in tokens.")] = 32,
    settings: Annotated[str, typer.Option(help="Settings of the memory, as JSON.")] = "{}",
    store_dir: Annotated[Path, typer.Option(help="Where the stores are put.")] = Path("scratch/001_needle"),
    out: Annotated[Path, typer.Option(help="The result, raw JSON.")] = RESULT,
    pass_fraction: Annotated[float, typer.Option("--pass", help="The least fraction of right answers.")] = 0.95,
) -> None:
    """Hide needles in a haystack, read it in one process, ask for some of them in another."""
    lengths, phrasings = (tuple(int(part) for part in given.split(",")) for given in (tokens, phrasing))
    plan = Plan(lengths, needles, ask, mode, phrasings, seed, kill, model, max_tokens, json.loads(settings))
    plan_json = json.loads(json.dumps(asdict(plan))) | {
        "model": model and Path(model).name
    }  # no folder of this machine
    result: dict[str, Any] = json.loads(out.read_text("utf-8")) if out.exists() else {"plan": plan_json, "lengths": {}}
    if result["plan"] != plan_json:
        raise typer.BadParameter(f"{out} holds the result of another plan; name another file or move it away")
    with progress_bar() as progress:
        for n_tokens in lengths:
            store = store_dir / f"{n_tokens}-needles{needles}-seed{seed}{'-killed' if kill else ''}"
            for _ in run_length(plan, n_tokens, store, result["lengths"].setdefault(str(n_tokens), {}), progress):
                write_json(out, result)
    passed = True
    for n_tokens in lengths:
        found = result["lengths"][str(n_tokens)]["summary"]
        print(f"{n_tokens:>9,} tokens:", json.dumps(found))
        passed &= all(group["correct"] >= pass_fraction * group["n"] for group in found.values())
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    typer.run(main)
