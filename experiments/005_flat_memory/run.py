"""Peak resident size of a process that asks a short store and one that asks a long store.

    python experiments/005_flat_memory/run.py [--tokens 8000,64000]

One process ingests haystack prose of each length into a store of its own (kept in --store-dir, so that a second
run goes on). For every length a new process loads the model, asks four questions in mode auto and reports VmHWM,
the largest resident size that it ever had; memory-mapped weights that were read count. The ratio of the last to
the first length is the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import shuffled_filler  # noqa: E402
from experiments.provenance import circumstances, peak_memory_bytes, write_json  # noqa: E402
from livingkv import Memory  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
STORES = ROOT / "scratch" / "005_flat_memory"


def ingest(store: Path, n_tokens: int, model: str | None, seed: int) -> int:
    """Read sentences into the store until it holds `n_tokens`; the tokens that it holds then."""
    with Memory.open(store, model=model) as memory:
        sentences, piece = shuffled_filler(seed), 0
        while True:
            known = memory.sessions()[0].n_tokens if store.exists() and memory.sessions() else 0
            if known >= n_tokens:
                return known
            text = " ".join(islice(sentences, 200))
            memory.ingest(f"part {piece}", text=text.encode())
            piece += 1


def ask(store: Path, model: str | None, seed: int) -> dict[str, Any]:
    """Ask about four stored sentences; the peak memory of this process."""
    with Memory.open(store, model=model, read_only=True) as memory:
        answers = [memory.ask(f"What is said about this: {s}", max_tokens=16) for s in islice(shuffled_filler(seed), 4)]
        n_tokens = memory.sessions()[0].n_tokens
    return {
        "n_tokens": n_tokens,
        "peak_bytes": peak_memory_bytes(),
        "modes": [answer.mode for answer in answers],
        "reused_tokens": [answer.reused_tokens for answer in answers],
    }


def main(
    tokens: Annotated[str, typer.Option(help="Lengths, shortest first.")] = "8000,64000",
    model: Annotated[str | None, typer.Option(help="A model spec.")] = None,
    seed: int = 0,
    store_dir: Annotated[Path, typer.Option(help="Where the stores are kept.")] = STORES,
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = RESULT,
    only_ask: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Ingest what is missing, then ask each store from a process of its own."""
    if only_ask is not None:
        print(json.dumps(ask(only_ask, model, seed)))
        return
    rows = []
    for n_tokens in (int(part) for part in tokens.split(",")):
        store = store_dir / f"{n_tokens}.lkv"
        store.parent.mkdir(parents=True, exist_ok=True)
        ingest(store, n_tokens, model, seed)
        command = [sys.executable, __file__, "--only-ask", str(store), "--seed", str(seed)]
        command += ["--model", model] if model else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    ratio = rows[-1]["peak_bytes"] / rows[0]["peak_bytes"]
    write_json(out, {"circumstances": circumstances(), "seed": seed, "rows": rows, "peak_ratio": ratio})


if __name__ == "__main__":
    typer.run(main)
