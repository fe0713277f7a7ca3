"""A thousand SIGKILLs: at every failpoint, in the middle of writes and at random times, among all verbs of the store.

    python experiments/012_kills/run.py [--kills 1000] [--seeds 51,52,53,54]

Runs the crash driver of the tests (tests/store/crash_driver.py): children work on a store and are killed; after each
life the store is opened, repaired and compared with an oracle that was told of acknowledged operations only. The driver
fails at the first thing that is lost or wrong. Writes what was killed and what was acknowledged.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import circumstances, write_json  # noqa: E402


def main(
    kills: Annotated[int, typer.Option(help="Children killed, shared by the seeds.")] = 1000,
    seeds: Annotated[str, typer.Option(help="With commas between them.")] = "51,52,53,54",
) -> None:
    """Run the driver once for every seed and write result.json."""
    wanted = [int(seed) for seed in seeds.split(",")]
    killed: Counter[str] = Counter()
    acknowledged: Counter[str] = Counter()
    n_lives = n_taken = 0
    for seed in track(wanted, "killing"):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.store.crash_driver", folder, str(kills // len(wanted)), str(seed)]
            done: dict[str, Any] = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
        killed.update(done["kills"])
        acknowledged.update(done["acknowledged"])
        n_lives += done["lives"]
        n_taken += done["pages_taken_by_budgets"]
    result = {
        "circumstances": circumstances(),
        "seeds": wanted,
        "n_kills": sum(killed.values()),
        "n_lives": n_lives,
        "kills": dict(killed),
        "n_acknowledged": sum(acknowledged.values()),
        "acknowledged": dict(acknowledged),
        "pages_taken_by_budgets": n_taken,
    }
    write_json(Path(__file__).with_name("result.json"), result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    typer.run(main)
